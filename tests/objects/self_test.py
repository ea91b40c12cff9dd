#!/usr/bin/env python3
"""Does each check of check_objects.py accept good code and notice bad code? Compiles small samples to find out."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import check_objects

SAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "samples")
COMPILER = os.environ.get("FLASHWAVE_CXX", "clang++-22")
AVX2_FLAGS = ["-mavx2", "-mfma"]
AVX512_FLAGS = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]
AMX_FLAGS = [*AVX512_FLAGS, "-mamx-tile", "-mamx-bf16"]
AARCH64 = "--target=aarch64-linux-gnu"


class ObjectChecks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.all_tests_folder = folder.name
        cls.compiled = {}  # by sample and flags: most tests begin with the same sound objects

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def compile(self, sample, output, *flags):
        path = os.path.join(self.folder, output)
        known = self.compiled.get((sample, flags))
        if known:
            shutil.copyfile(known, path)
            return path
        common = ["-std=c++20", "-O3", "-ffp-contract=fast", "-fPIC", "-fvisibility=hidden", "-Wno-psabi"]
        subprocess.run([COMPILER, *common, *flags, os.path.join(SAMPLES, sample), "-o", path], check=True)
        kept = os.path.join(self.all_tests_folder, str(len(self.compiled)))
        self.compiled[sample, flags] = shutil.copyfile(path, kept)
        return path

    def kernels(self, avx2_rows=6, avx512_rows=10, **replaced):
        """Objects named like the kernels', sound unless replaced: {"avx2": (sample, flags...)}."""
        sources = {
            "avx2": ("accumulate.cpp", "-DWIDTH=8", "-DROWS=%d" % avx2_rows, *AVX2_FLAGS),
            "avx512": ("accumulate.cpp", "-DWIDTH=16", "-DROWS=%d" % avx512_rows, *AVX512_FLAGS),
            "zen4": ("accumulate.cpp", "-DWIDTH=16", "-DROWS=%d" % avx512_rows, *AVX512_FLAGS),
            "amx": ("tiles.cpp", *AMX_FLAGS),
            "portable": ("accumulate.cpp", "-DWIDTH=4", "-DROWS=3"),
        }
        sources.update(replaced)
        return [self.compile(sample, name + ".cpp.o", "-c", *flags) for name, (sample, *flags) in sources.items()]

    def aarch64_kernels(self, rows=12, **replaced):
        sources = {"neon": ("lanes.cpp", "-DROWS=%d" % rows), "portable": ("accumulate.cpp", "-DWIDTH=4", "-DROWS=3")}
        sources.update(replaced)
        return [
            self.compile(sample, name + ".cpp.o", "-c", AARCH64, *flags) for name, (sample, *flags) in sources.items()
        ]

    def problems(self, check, objects=(), library=None, soname="libsample.so.0", machine="x86_64"):
        return check_objects.CHECKS[check](
            argparse.Namespace(objects=list(objects), library=library, soname=soname, machine=machine)
        )

    def assert_one_mentions(self, word, problems):
        self.assertTrue(any(word in problem for problem in problems), "no mention of %s in %s" % (word, problems))

    def test_sound_kernels_pass(self):
        objects = self.kernels()
        for check in ("weak-functions", "load-time-code", "baseline", "spills", "tiles"):
            self.assertEqual(self.problems(check, objects), [], check)

    def test_frame_pointer_does_not_matter(self):
        kept = "-fno-omit-frame-pointer"
        sound = self.kernels(avx2=("accumulate.cpp", "-DWIDTH=8", "-DROWS=6", kept, *AVX2_FLAGS))
        self.assertEqual(self.problems("spills", sound), [])
        bad = self.kernels(avx2=("accumulate.cpp", "-DWIDTH=8", "-DROWS=12", kept, *AVX2_FLAGS))
        self.assert_one_mentions("avx2.cpp.o: accumulate", self.problems("spills", bad))

    def test_spills_are_found(self):
        self.assert_one_mentions("avx2.cpp.o: accumulate", self.problems("spills", self.kernels(avx2_rows=12)))
        self.assert_one_mentions("avx512.cpp.o: accumulate", self.problems("spills", self.kernels(avx512_rows=24)))

    def test_severe_spills_are_found(self):
        # So many that the compiler folds most reloads into the multiply-adds.
        for rows in (16, 24, 40):
            self.assert_one_mentions("avx2.cpp.o: accumulate", self.problems("spills", self.kernels(avx2_rows=rows)))

    def test_polynomials_are_no_micro_kernels(self):
        polynomial = ("polynomial.cpp", "-DWIDTH=8", *AVX2_FLAGS)
        self.assert_one_mentions("no micro-kernel", self.problems("spills", self.kernels(avx2=polynomial)))

    def test_no_micro_kernel_is_a_failure(self):
        self.assert_one_mentions("no micro-kernel", self.problems("spills", self.kernels(avx2=("weak.cpp", "-mavx2"))))

    def test_weak_function_is_found(self):
        objects = self.kernels(avx512=("weak.cpp", *AVX512_FLAGS))
        self.assert_one_mentions("avx512.cpp.o: _Z5scalef", self.problems("weak-functions", objects))

    def test_load_time_code_is_found(self):
        objects = self.kernels(avx2=("load_time.cpp", *AVX2_FLAGS))
        self.assert_one_mentions(".init_array", self.problems("load-time-code", objects))

    def test_avx_in_baseline_is_found(self):
        objects = self.kernels(portable=("accumulate.cpp", "-DWIDTH=4", "-DROWS=3", "-mavx"))
        self.assert_one_mentions("portable.cpp.o", self.problems("baseline", objects))
        objects = self.kernels() + [self.compile("weak.cpp", "validate.cpp.o", "-c", "-mavx")]
        self.assert_one_mentions("validate.cpp.o", self.problems("baseline", objects))

    def test_avx512_in_avx2_is_found(self):
        objects = self.kernels(avx2=("accumulate.cpp", "-DWIDTH=8", "-DROWS=10", *AVX512_FLAGS))
        self.assert_one_mentions("avx2.cpp.o", self.problems("baseline", objects))

    def test_bf16_products_in_avx512_are_found(self):
        bf16 = ("bf16.cpp", *AVX512_FLAGS, "-mavx512bf16")
        self.assertEqual(self.problems("baseline", self.kernels(zen4=bf16)), [])
        self.assert_one_mentions("avx512.cpp.o: product", self.problems("baseline", self.kernels(avx512=bf16)))

    def test_tiles_elsewhere_are_found(self):
        objects = self.kernels(avx512=("tiles.cpp", *AMX_FLAGS))
        self.assert_one_mentions("avx512.cpp.o", self.problems("baseline", objects))
        objects = self.kernels(zen4=("tiles.cpp", *AMX_FLAGS))
        self.assert_one_mentions("zen4.cpp.o", self.problems("baseline", objects))
        objects = self.kernels(portable=("tiles.cpp", *AMX_FLAGS))
        self.assert_one_mentions("portable.cpp.o", self.problems("baseline", objects))

    def test_wrong_use_of_tiles_is_found(self):
        for fault, word in (
            ("UNCONFIGURED", "nobody configured"),
            ("UNRELEASED", "leaves without tilerelease"),
            ("ON_STACK", "a tile on the stack"),
            ("APART", "no tiles found"),
        ):
            objects = self.kernels(amx=("tiles.cpp", "-D" + fault, *AMX_FLAGS))
            self.assert_one_mentions(word, self.problems("tiles", objects))

    def test_missing_kernel_object_is_a_failure(self):
        for check in ("weak-functions", "load-time-code", "baseline", "spills", "tiles"):
            with self.assertRaises(SystemExit):
                self.problems(check, self.kernels()[:2])
        for check in ("weak-functions", "load-time-code", "baseline", "spills"):
            with self.assertRaises(SystemExit):
                self.problems(check, self.aarch64_kernels()[:1], machine="aarch64")

    def test_aarch64(self):
        objects = [*self.aarch64_kernels(), self.compile("atomic.cpp", "validate.cpp.o", "-c", AARCH64)]
        for check in ("weak-functions", "load-time-code", "baseline", "spills"):
            self.assertEqual(self.problems(check, objects, machine="aarch64"), [], check)
        for kept in ((), ("-fno-omit-frame-pointer",)):
            bad = self.aarch64_kernels(neon=("lanes.cpp", "-DROWS=20", *kept))
            self.assert_one_mentions("neon.cpp.o: accumulate", self.problems("spills", bad, machine="aarch64"))
        polynomial = self.aarch64_kernels(neon=("polynomial.cpp", "-DWIDTH=4"))
        self.assert_one_mentions("no micro-kernel", self.problems("spills", polynomial, machine="aarch64"))
        weak = self.aarch64_kernels(neon=("weak.cpp",))
        self.assert_one_mentions("neon.cpp.o: _Z5scalef", self.problems("weak-functions", weak, machine="aarch64"))
        newer = [*self.aarch64_kernels(), self.compile("atomic.cpp", "validate.cpp.o", "-c", AARCH64, "-march=armv8.1-a")]
        self.assert_one_mentions("validate.cpp.o: count", self.problems("baseline", newer, machine="aarch64"))

    def library(self, *flags):
        return self.compile("library.cpp", "libsample.so.0", "-shared", "-Wl,-soname,libsample.so.0", *flags)

    def test_sound_library_passes(self):
        self.assertEqual(self.problems("exports", library=self.library()), [])

    def test_unsound_libraries_are_found(self):
        self.assert_one_mentions("exports _Z6helperi", self.problems("exports", library=self.library("-DLEAKY")))
        self.assert_one_mentions("needs somewhere_else", self.problems("exports", library=self.library("-DNEEDY")))
        self.assert_one_mentions("soname", self.problems("exports", library=self.library(), soname="libother.so.0"))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()

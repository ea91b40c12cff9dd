"""Configuring: which GPUs are compiled for, what is said where a tool is missing, and that nothing missing is remembered.

configure_test.py CMAKE COMPILER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPILER = sys.argv.pop(2)
CMAKE = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
CHOICES = ("GPU_ARCHS", "AMDGPU_TARGETS", "PYTORCH_ROCM_ARCH", "FLASHWAVE_AMD_TARGETS", "FLASHWAVE_NVIDIA_TARGETS")


class Configure(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def configure(self, *options, environment=None, compiler=COMPILER):
        kept = {name: value for name, value in os.environ.items() if name not in CHOICES}
        command = [CMAKE, "-G", "Ninja", "-S", ROOT, "-B", self.folder / "build", f"-DCMAKE_CXX_COMPILER={compiler}"]
        command += ["-DFLASHWAVE_BUILD_TESTS=OFF", "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON", *options]
        return subprocess.run(command, capture_output=True, text=True, env={**kept, **(environment or {})})

    def amd(self, answer):
        self.assertEqual(answer.returncode, 0, answer.stderr)
        found = re.search(r"AMD kernels for (.*), by", answer.stdout)
        return found.group(1).split() if found else []

    def tools(self, *names):
        """A folder to be the PATH: the tools of this machine with these names alone."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        for name in names:
            if not (folder / name).exists():
                (folder / name).symlink_to(shutil.which(name))
        return str(folder)

    def assert_short_error(self, answer, *words, limit=450):
        """One or two lines that say what to do."""
        self.assertNotEqual(answer.returncode, 0)
        error = re.search(
            r"CMake Error at [^\n]*\n(.*?)\nCall Stack|CMake Error at [^\n]*\n(.*?)\n\n", answer.stderr, re.S
        )
        text = " ".join((error.group(1) or error.group(2)).split()) if error else answer.stderr
        self.assertLess(len(text), limit, text)
        for word in words:
            self.assertIn(word, text)

    def test_machine_code_that_is_not_made_any_more_goes(self):
        options = ("-DFLASHWAVE_NVIDIA_TARGETS=none", "-DFLASHWAVE_AMD_TARGETS=gfx942")
        self.amd(self.configure(*options))
        kernels = self.folder / "build/kernels"
        (kernels / "old_kernels_gfx942.co").touch()
        (kernels / "generic_attention_gfx942.co").touch()
        self.amd(self.configure(*options))
        self.assertEqual([file.name for file in kernels.glob("*.co")], ["generic_attention_gfx942.co"])

    def test_targets_by_option_and_by_the_names_of_rocm(self):
        none = "-DFLASHWAVE_NVIDIA_TARGETS=none"
        answer = self.configure(none, "-DFLASHWAVE_AMD_TARGETS=gfx942;gfx1101")
        self.assertEqual(self.amd(answer), ["gfx942", "gfx1100"])  # gfx1101 runs the code of gfx1100
        self.assertIn("Left out: the kernels of NVIDIA GPUs; none are chosen", answer.stdout)
        empty = "-DFLASHWAVE_AMD_TARGETS="
        for name in ("GPU_ARCHS", "AMDGPU_TARGETS", "PYTORCH_ROCM_ARCH"):
            answer = self.configure(none, empty, environment={name: "gfx90a:sramecc+:xnack-, gfx1201"})
            self.assertEqual(self.amd(answer), ["gfx90a", "gfx1201"], name)
        # Nothing of that is remembered: without the variable, all.
        self.assertGreater(len(self.amd(self.configure(none, empty))), 8)

    def test_kernels_of_another_build(self):
        """Taken from a build of the same tree; one of another tree might hold anything."""
        other = self.folder / "other"
        other.mkdir()
        for tree, borrowed in (("/elsewhere", False), (ROOT, True)):
            made = [f"FLASHWAVE_{maker}_ARCHIVE:INTERNAL={other / maker}" for maker in ("AMD", "NVIDIA")]
            (other / "CMakeCache.txt").write_text("\n".join([f"CMAKE_HOME_DIRECTORY:INTERNAL={tree}", *made]) + "\n")
            none = ("-DFLASHWAVE_NVIDIA_TARGETS=none", "-DFLASHWAVE_AMD_TARGETS=gfx942")
            answer = self.configure(*none, f"-DFLASHWAVE_GPU_CODE_OF={other}")
            self.assertEqual(self.amd(answer), [] if borrowed else ["gfx942"])
            self.assertEqual(f"AMD and NVIDIA kernels: those of {other}" in answer.stdout, borrowed)
        # The build that has them is asked for them before they are read.
        commands = subprocess.run(
            ["ninja", "-C", self.folder / "build", "-t", "commands", "flashwave_code"], capture_output=True, text=True
        ).stdout
        self.assertIn(f"--build {other} --target flashwave_amd_kernels flashwave_nvidia_kernels", commands)

    def test_some_of_the_kernels(self):
        options = ("-DFLASHWAVE_NVIDIA_TARGETS=none", "-DFLASHWAVE_AMD_TARGETS=gfx942")
        answer = self.configure(*options, "-DFLASHWAVE_AMD_PARTS=^cdna_fwd_d(64|96)$")
        self.amd(answer)
        said = re.search(r"Left out: AMD kernels that FLASHWAVE_AMD_PARTS does not name: (.*)\.", answer.stdout).group(1)
        self.assertLessEqual({"cdna_fwd_d128", "cdna_fwd_modified_d64", "generic_attention"}, set(said.split()))
        made = set(re.findall(r"kernels/(\w+)_gfx942\.co:", (self.folder / "build/build.ninja").read_text()))
        self.assertEqual(made, {"cdna_fwd_d64", "cdna_fwd_d96"})
        answer = self.configure(*options, "-DFLASHWAVE_AMD_PARTS=nonsense")
        self.assert_short_error(answer, "FLASHWAVE_AMD_PARTS names no AMD kernels", "cdna_fwd_d64", limit=1500)
        self.assertNotIn("Left out: AMD", self.configure(*options, "-DFLASHWAVE_AMD_PARTS=").stdout)

    def test_unknown_targets(self):
        answer = self.configure("-DFLASHWAVE_AMD_TARGETS=gfx943")
        self.assert_short_error(answer, "FLASHWAVE_AMD_TARGETS", "gfx943", "gfx942")
        answer = self.configure("-DFLASHWAVE_AMD_TARGETS=none", "-DFLASHWAVE_NVIDIA_TARGETS=sm_35")
        self.assert_short_error(answer, "FLASHWAVE_NVIDIA_TARGETS", "sm_35", "sm_90")
        answer = self.configure("-DFLASHWAVE_AMD_TARGETS=", environment={"GPU_ARCHS": "mi300"})
        self.assert_short_error(answer, "GPU_ARCHS", "mi300")

    def test_a_tool_that_appears_is_used(self):
        base = ("ninja", "ld.lld-22", "ld.lld", "ld", "as", "env", "sh", "bash", "sed")
        path = self.tools(*(name for name in base if shutil.which(name)))
        compiler = str(pathlib.Path(shutil.which(COMPILER)).resolve())
        options = (
            "-DFLASHWAVE_NVIDIA_TARGETS=none",
            "-DFLASHWAVE_EMULATOR=OFF",
            f"-DCMAKE_C_COMPILER={compiler}",
            "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
        )  # else /usr/bin is searched whatever the PATH
        answer = self.configure(*options, environment={"PATH": path, "ROCM_PATH": ""}, compiler=compiler)
        self.assertEqual(self.amd(answer), [])
        self.assertIn("Left out: the kernels of AMD GPUs; no clang >= 19", answer.stdout)
        # Where they are asked for by name, leaving them out is an error.
        asked = self.configure(
            *options, "-DFLASHWAVE_AMD_TARGETS=gfx942", environment={"PATH": path}, compiler=compiler
        )
        self.assert_short_error(asked, "FLASHWAVE_AMD_TARGETS", "clang >= 19")
        self.tools("clang++-22")
        answer = self.configure(*options, "-DFLASHWAVE_AMD_TARGETS=", environment={"PATH": path}, compiler=compiler)
        self.assertGreater(len(self.amd(answer)), 8)

    def test_a_clang_without_the_target_is_passed_over(self):
        false = self.folder / "clang++"
        false.write_text("#!/bin/sh\nexit 1\n")
        false.chmod(0o755)
        answer = self.configure(f"-DFLASHWAVE_AMD_COMPILER={false}", "-DFLASHWAVE_AMD_TARGETS=gfx942")
        self.assert_short_error(answer, "AMDGPU", str(false))

    def test_rocms_compiler_is_taken_for_the_kernels_too(self):
        real = pathlib.Path(shutil.which(COMPILER)).resolve().parent
        rocm = self.folder / "rocm"
        for path, text in (
            ("bin/hipcc", f'exec {real}/clang++ "$@"'),
            ("bin/hipconfig", f"[ $1 = --hipclangpath ] && echo {rocm}/llvm/bin"),
            ("llvm/bin/clang++", f'exec {real}/clang++ "$@"'),
            ("llvm/bin/amdclang++", f'exec {real}/clang++ "$@"'),
        ):
            script = rocm / path
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(f"#!/bin/sh\n{text}\n")
            script.chmod(0o755)
        options = ("-DFLASHWAVE_NVIDIA_TARGETS=none", "-DFLASHWAVE_EMULATOR=OFF", "-DFLASHWAVE_AMD_TARGETS=gfx942")
        answer = self.configure(*options, compiler=rocm / "bin/hipcc")
        self.assertIn(f"AMD kernels for gfx942, by {rocm}/llvm/bin/clang++", answer.stdout, answer.stderr)
        shutil.rmtree(self.folder / "build")
        answer = self.configure(*options, compiler=rocm / "llvm/bin/amdclang++")
        self.assertIn(f"AMD kernels for gfx942, by {rocm}/llvm/bin/amdclang++", answer.stdout, answer.stderr)
        # A hipcc without hipconfig beside it is tried itself.
        shutil.rmtree(self.folder / "build")
        (rocm / "bin/hipconfig").unlink()
        path = self.tools("ninja", "sh", "bash", "env", "sed", "ld")
        hidden = ("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", f"-DCMAKE_C_COMPILER={real}/clang")
        answer = self.configure(*options, *hidden, environment={"PATH": path, "ROCM_PATH": ""}, compiler=rocm / "bin/hipcc")
        self.assertIn(f"AMD kernels for gfx942, by {rocm}/bin/hipcc", answer.stdout, answer.stderr)
        # No other clang: ROCM_PATH is searched.
        shutil.rmtree(self.folder / "build")
        environment = {"PATH": path, "ROCM_PATH": str(rocm)}
        answer = self.configure(*options, *hidden, environment=environment, compiler=real / "clang++")
        self.assertIn(f"AMD kernels for gfx942, by {rocm}/llvm/bin/clang++", answer.stdout, answer.stderr)

    def test_rocms_compiler_that_is_too_old(self):
        """Debian 12's hipcc: HIP 5.2 around clang 15. What it answers to --version, word for word."""
        hipcc = self.folder / "hipcc"
        hipcc.write_text("#!/bin/sh\n[ $1 = --version ] || exit 1\necho HIP version: 5.2.21153-0\necho Debian clang version 15.0.6\n")
        hipcc.chmod(0o755)
        by_name = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        for answer in (self.configure(compiler=hipcc), self.configure(compiler="hipcc", environment=by_name)):
            self.assert_short_error(answer, "hipcc is clang version 15.0.6, too old", "clang 19 (ROCm 6.4)", "clang-22")
            self.assertNotIn("identification", answer.stdout)  # nothing was tried with it

    def assert_tests_are_left_out(self, missing, *hidden):
        options = ("-DFLASHWAVE_AMD_TARGETS=none", "-DFLASHWAVE_NVIDIA_TARGETS=none", *hidden)
        answer = self.configure(*options, "-DFLASHWAVE_BUILD_TESTS=AUTO")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn(f"Left out: the tests; {missing} was not found", answer.stdout)
        asked = self.configure(*options, "-DFLASHWAVE_BUILD_TESTS=ON")
        self.assertNotEqual(asked.returncode, 0)
        self.assertIn(f"FLASHWAVE_BUILD_TESTS is ON, but {missing} was not found", " ".join(asked.stderr.split()))

    def test_without_googletest_the_tests_are_left_out(self):
        self.assert_tests_are_left_out("GoogleTest", "-DFLASHWAVE_EMULATOR=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON")

    def test_without_what_bundles_code_objects_the_tests_are_left_out(self):
        self.assert_tests_are_left_out(
            "clang-offload-bundler", "-DFLASHWAVE_EMULATOR=ON", "-DFLASHWAVE_OFFLOAD_BUNDLER=OFF"
        )

    def test_another_llvm_is_passed_over(self):
        old = self.folder / "llvm-config"
        old.write_text("#!/bin/sh\ncase $1 in --version) echo 14.0.6 ;; *) echo /usr/lib/llvm-14/lib ;; esac\n")
        old.chmod(0o755)
        options = ("-DFLASHWAVE_AMD_TARGETS=none", "-DFLASHWAVE_NVIDIA_TARGETS=none")
        answer = self.configure(*options, environment={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertNotIn("Left out: the emulator", answer.stdout)
        answer = self.configure(*options, f"-DFLASHWAVE_LLVM_CONFIG={old}")
        self.assertIn("Left out: the emulator of AMD GPUs; LLVM 22's archives were not found", answer.stdout)
        self.assertIn("14.0.6", answer.stdout)
        answer = self.configure(*options, "-DFLASHWAVE_LLVM_CONFIG=")
        self.assertNotIn("Left out: the emulator", answer.stdout)

    def test_a_folder_of_an_older_version(self):
        (self.folder / "build").mkdir()
        (self.folder / "build" / "CMakeCache.txt").write_text("CMAKE_PROJECT_NAME:STATIC=flashwave\n")
        self.assert_short_error(self.configure(), "older flashwave", "rm -rf")


if __name__ == "__main__":
    unittest.main(verbosity=2)

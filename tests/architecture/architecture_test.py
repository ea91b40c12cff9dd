"""Adds an architecture to a copy of the tree by doing what docs/adding-a-kernel.md says, and nothing else; then its kernels
must be compiled, chosen for their GPU, and pass the checks that read the lists.

architecture_test.py CMAKE COMPILER FAKE_HIP
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

CMAKE, COMPILER, FAKE_HIP = sys.argv[1:4]
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-kernel.md"
PROBLEM = "b=2 sq=1024 sk=1024 hq=8 hk=2 d=64 dtype=bf16 causal=1".split()


def steps():
    """The numbered steps of the section: their text and their block of code, if there is one."""
    section = PAGE.read_text().split("## A new architecture", 1)[1]
    for text in re.split(r"^\d+\. ", section, flags=re.M)[1:]:
        block = re.search(r"^   ```\w+\n(.*?)^   ```$", text, re.S | re.M)
        yield (text[: block.start()], textwrap.dedent(block.group(1))) if block else (text, None)


def follow(tree):
    """Returns the files that were added, and those that got a line."""
    added, changed = [], []
    for words, code in steps():
        if code is None:
            continue
        if line := re.search(r"A line of `(\S+)`,\s+after the one of\s+`(\S+?)`", words):
            path, before = tree / line.group(1), line.group(2)
            lines = path.read_text().splitlines(keepends=True)
            at = next(i for i, text in enumerate(lines) if before in text)
            indent = re.match(r" *", lines[at]).group()
            lines.insert(at + 1, indent + code.strip() + "\n")
            path.write_text("".join(lines))
            changed.append(line.group(1))
        else:
            name = re.findall(r"`(kernels/example/\S+)`", words)[-1]
            (tree / name).parent.mkdir(exist_ok=True)
            (tree / name).write_text(code)
            added.append(name)
    return added, changed


class Architecture(unittest.TestCase):
    def run_in(self, tree, *command, **environment):
        answer = subprocess.run(
            [str(word) for word in command], cwd=tree, capture_output=True, text=True, env={**os.environ, **environment}
        )
        self.assertEqual(answer.returncode, 0, answer.stdout[-3000:] + answer.stderr[-3000:])
        return answer.stdout

    def test_the_page_is_enough(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        tree = folder / "tree"
        skipped = shutil.ignore_patterns("build*", "out", ".git", "target", "__pycache__", "shared", "wheel")
        shutil.copytree(ROOT, tree, ignore=skipped, symlinks=True)
        added, changed = follow(tree)
        self.assertEqual(added, [f"kernels/example/{name}" for name in ("kernels.def", "fwd.hip", "sources.cmake")])
        self.assertEqual(changed, ["kernels/registry.def", "kernels/CMakeLists.txt"])

        options = ["-DFLASHWAVE_AMD_TARGETS=gfx1250", "-DFLASHWAVE_NVIDIA_TARGETS=none", "-DFLASHWAVE_EMULATOR=OFF"]
        # Compiled as, and where, the release build is: ccache has what no list of kernels is in.
        options += ["-DFLASHWAVE_BUILD_TESTS=OFF", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
        build = tree / "build"
        self.run_in(tree, CMAKE, "-G", "Ninja", "-S", tree, "-B", build, *options)
        self.run_in(tree, CMAKE, "--build", build, "-j2", "--target", "flashwave_cli")

        gpu = {"FLASHWAVE_HIP_LIBRARY": FAKE_HIP, "FAKE_HIP_COUNT": "1", "FAKE_HIP_ARCH": "gfx1250"}
        explained = self.run_in(tree, build / "flashwave", "explain", "--all", "--device", "hip", *PROBLEM, **gpu)
        self.assertRegex(explained, r"kernel +example_fwd_bf16_d64_m64n1\n")
        self.assertIn("needs the matrix instructions of RDNA 4", explained)
        wide = [word.replace("d=64", "d=128") for word in PROBLEM]
        explained = self.run_in(tree, build / "flashwave", "explain", "--device", "hip", *wide, **gpu)
        self.assertRegex(explained, r"kernel +amd_generic_fwd_bf16\n")
        self.assertIn("example_fwd_bf16_d64_m64n1: takes dim_qk <= 64, got 128", explained)
        gpu["FAKE_HIP_ARCH"] = "gfx1100"  # known, but not compiled for
        refused = subprocess.run(
            [build / "flashwave", "explain", "--device", "hip", *PROBLEM],
            capture_output=True,
            text=True,
            env={**os.environ, **gpu},
        )
        self.assertIn("no machine code for hip:0 (gfx1100)", refused.stdout + refused.stderr)

        self.run_in(tree, sys.executable, "tests/layering/check_layers.py", tree)
        rows = self.run_in(tree, sys.executable, "tests/codeobj/kernel_lists.py", CXX=COMPILER)
        self.assertIn("\texample_fwd_f16_d64_m64n1\tkIsaExample\t", rows)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

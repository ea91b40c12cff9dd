"""The scripts behind `make`: what they say where something is missing, and that a stage which proves nothing fails.

Everything that would change this machine is played by stand-ins on a PATH of their own.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOBODY = 65534


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(self.remove)
        self.tree = self.folder / "tree"
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in ("bash", "sh", "env", "grep", "dirname", "cat", "rm", "sha256sum"):
            (self.bin / name).symlink_to(shutil.which(name))

    def remove(self):
        self.folder.chmod(0o755)
        if self.tree.exists():
            self.tree.chmod(0o755)
        shutil.rmtree(self.folder)

    def copy(self, *names):
        for name in names:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)

    def program(self, name, text):
        path = self.bin / name if "/" not in name else self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_in_tree(self, *command, **environment):
        return subprocess.run(
            [str(word) for word in command], cwd=self.tree, capture_output=True, text=True, timeout=300,
            env={"HOME": str(self.folder), "PATH": str(self.bin), **environment},
        )  # fmt: skip

    def assert_short_error(self, answer, *words):
        """One or two lines of the script's own, and an exit status that is not 0."""
        self.assertNotEqual(answer.returncode, 0, answer.stdout)
        own = [line for line in answer.stderr.splitlines() if line.startswith(("setup:", "venv:", "  ", "This"))]
        self.assertIn(len(own), (1, 2), answer.stderr)
        for word in words:
            self.assertIn(word, " ".join(own))


class Setup(Scripts):
    """Debian's tools are stand-ins: apt-get writes down how it was called."""

    def setUp(self):
        super().setUp()
        self.copy("scripts/setup")
        self.calls = self.folder / "calls"
        self.calls.touch()
        self.debian(installed=False, listed=True, network=True)
        self.program("id", "echo 0")

    def debian(self, installed, listed, network):
        self.program(
            "dpkg-query",
            'for p in "$@"; do case $p in -*) ;; *) echo "installed $p" ;; esac; done' if installed else "exit 1",
        )
        candidate = "1.0" if listed else "(none)"
        self.program("apt-cache", f'shift; for p in "$@"; do echo "$p:"; echo "  Candidate: {candidate}"; done')
        self.program("apt-get", f'echo "$*" >> {self.calls}; exit {0 if network else 100}')

    def set_up(self, what="run"):
        answer = self.run_in_tree(self.tree / "scripts/setup", "--for", what)
        calls = self.calls.read_text().splitlines()
        self.installed = [call for call in calls if " install " in call and "--download-only" not in call]
        return answer

    def test_nothing_is_missing(self):
        self.debian(installed=True, listed=False, network=False)
        answer = self.set_up()
        self.assertEqual((answer.returncode, self.installed), (0, []), answer.stderr)
        self.assertIn("nothing to install", answer.stdout)

    def test_all_is_fetched_before_anything_is_installed(self):
        answer = self.set_up()
        self.assertEqual(answer.returncode, 0, answer.stderr)
        calls = self.calls.read_text().splitlines()
        self.assertEqual(len(self.installed), 1)
        self.assertIn("--download-only", calls[0])
        for package in ("clang-22", "llvm-22-dev", "ccache"):
            self.assertIn(package, self.installed[0])

    def test_no_network_for_the_lists(self):
        self.debian(installed=False, listed=False, network=False)
        answer = self.set_up()
        self.assert_short_error(answer, "could not update its lists", "nothing was installed", "network", "clang-22")
        self.assertEqual(self.installed, [])

    def test_no_network_for_the_packages(self):
        self.debian(installed=False, listed=True, network=False)
        answer = self.set_up()
        self.assert_short_error(answer, "could not install the packages", "nothing was installed", "network", "lld-22")
        self.assertEqual(self.installed, [])

    def test_neither_root_nor_sudo(self):
        self.program("id", "echo 1000")
        answer = self.set_up()
        self.assert_short_error(answer, "As root, run", "apt-get install", "clang-22")
        self.assertEqual(self.calls.read_text(), "")

    def test_no_debian(self):
        (self.bin / "apt-get").unlink()
        self.assert_short_error(self.set_up(), "no apt", "yourself", "clang-22")

    def test_wrong_usage(self):
        answer = self.set_up("dance")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("'dance'", answer.stderr)


class Environments(Scripts):
    def test_no_network_for_python_packages(self):
        self.copy("scripts/venv", "python/requirements-tools.txt")
        (self.bin / "python3").symlink_to(sys.executable)
        nowhere = "http://127.0.0.1:9/simple"  # nobody listens on the port of `discard`
        answer = self.run_in_tree(
            self.tree / "scripts/venv", "--tools", PIP_INDEX_URL=nowhere, PIP_RETRIES="0", UV_DEFAULT_INDEX=nowhere
        )
        self.assert_short_error(answer, "requirements-tools.txt could not be installed", "network", "PIP_INDEX_URL")
        self.assertFalse((self.tree / "out/venv-tools").exists())


class Crates(Scripts):
    """cargo is a stand-in that writes down how it was called."""

    def setUp(self):
        super().setUp()
        self.copy("scripts/crates")
        self.target = self.tree / "rust/target"
        self.lock = self.tree / "rust/Cargo.lock"
        (self.target / "debug/incremental").mkdir(parents=True)
        (self.target / "debug/compiled").write_text("crates")
        self.lock.write_text("versions")
        self.program("rustc", "echo a compiler")
        self.program("cargo", f'echo "$*" >> {self.folder}/calls')

    def crates(self, word):
        path = f"{self.bin}:{os.environ['PATH']}"
        answer = self.run_in_tree("scripts/crates", word, PATH=path, XDG_CACHE_HOME=str(self.folder / "cache"))
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_another_clone_takes_what_one_kept(self):
        self.crates("keep")
        calls = (self.folder / "calls").read_text()
        for crate in (ROOT / "rust").glob("*/Cargo.toml"):
            self.assertIn(f"-p {crate.parent.name}", calls)  # of this workspace: not kept
        shutil.rmtree(self.target)
        self.crates("take")
        self.assertEqual([path.name for path in (self.target / "debug").iterdir()], ["compiled"])

    def test_nothing_is_taken_for_other_versions_or_over_what_is_there(self):
        self.crates("keep")
        (self.target / "debug/compiled").write_text("newer")
        self.crates("take")
        self.assertEqual((self.target / "debug/compiled").read_text(), "newer")
        shutil.rmtree(self.target)
        for path, text in ((self.lock, "other versions"), (self.bin / "rustc", "#!/bin/sh\necho another compiler\n")):
            before = path.read_text()
            path.write_text(text)
            self.crates("take")
            self.assertFalse(self.target.exists(), path)
            path.write_text(before)
        self.crates("take")
        self.assertTrue(self.target.exists())


class Checkout(Scripts):
    def test_a_read_only_checkout(self):
        """Before anything is installed or built."""
        self.copy("Makefile")
        self.program("scripts/setup", "echo setup ran")
        for path in (self.tree, self.folder):
            path.chmod(0o555)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        for target in ("run", "build", "test", "wheel"):
            answer = subprocess.run(["make", target], cwd=self.tree, capture_output=True, text=True, timeout=60, **user)
            self.assert_short_error(answer, "This checkout is read-only", "copy it")
            self.assertNotIn("setup ran", answer.stdout)


class Stages(Scripts):
    """scripts/test with a stand-in for build/flashwave, which the stage `smoke` runs."""

    def stage(self, says, floor=10):
        self.copy("scripts/test", "scripts/parallel")
        (self.tree / "tests").mkdir(exist_ok=True)
        (self.tree / "tests/floors.txt").write_text(f"smoke {floor}\n")
        self.program("build/flashwave", says)
        return self.run_in_tree("scripts/test", "smoke", PATH=os.environ["PATH"])

    def test_enough_passed(self):
        answer = self.stage("echo '3 skipped: needs a GPU'; echo '12 passed, 0 failed, 3 skipped'")
        self.assertEqual(answer.returncode, 0, answer.stdout)
        self.assertRegex(answer.stdout, r"(?m)^ +3 needs a GPU$")
        self.assertRegex(answer.stdout, r"(?m)^smoke +ok +\d+ s +\d+ s CPU   12 passed, 0 failed, 3 skipped$")

    def test_fewer_than_the_floor(self):
        answer = self.stage("echo '9 passed, 0 failed, 0 skipped'")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("executed 9 tests, at least 10 were expected", answer.stdout)

    def test_skipped_tests_are_not_executed_ones(self):
        self.assertEqual(self.stage("echo '9 passed, 0 failed, 500 skipped'").returncode, 1)

    def test_a_failure_that_the_status_hides(self):
        self.assertEqual(self.stage("echo '12 passed, 1 failed, 0 skipped'").returncode, 1)

    def test_a_status_that_no_summary_explains(self):
        answer = self.stage("echo '12 passed, 0 failed, 0 skipped'; exit 3")
        self.assertEqual(answer.returncode, 1)
        self.assertRegex(answer.stdout, r"(?m)^smoke +FAILED")

    def test_death_by_a_signal_names_it_and_the_test(self):
        answer = self.stage('echo test_conversions > "$FLASHWAVE_CURRENT_TEST"; kill -ILL $$')
        self.assertEqual(answer.returncode, 1)
        self.assertIn("died of SIGILL while test_conversions ran", answer.stdout)

    def test_the_time_of_every_process_of_a_stage_is_counted(self):
        """That of a child which the stage waits for while it does nothing itself."""
        busy = f"{sys.executable} -c 'import time\nwhile time.process_time() < 2: pass'"
        answer = self.stage(f"{busy} & {busy} & wait; echo '12 passed, 0 failed, 0 skipped'")
        self.assertRegex(answer.stdout, r"(?m)^smoke +ok +\d+ s +[45] s CPU   12 passed")
        self.assertRegex(answer.stdout, r"(?m)^== summary \(\d+ s, [45] s of CPU time on \d+ cores;")

    def test_what_runs_in_the_background_is_waited_for_and_judged(self):
        self.copy("scripts/test", "scripts/parallel", "tests/floors.txt")
        self.program("scripts/test-rust", "echo 'test result: ok. 60 passed; 0 failed; 0 ignored; 0 measured'")
        self.program("scripts/test-integrations", "sleep 1; echo 6 passed, 0 failed, 0 skipped")
        for ends, status in (("exit 0", 0), ("exit 3", 1), ("kill -ILL $$", 1)):
            self.program("scripts/test-fresh", f"sleep 1; echo fresh ends; {ends}")
            answer = self.run_in_tree("scripts/test", "rust", "integrations", "fresh", PATH=os.environ["PATH"])
            self.assertEqual(answer.returncode, status, answer.stdout)
            self.assertRegex(answer.stdout, r"== stage fresh\nfresh ends\n")
            verdict = "FAILED" if status else "ok"
            self.assertRegex(answer.stdout, rf"(?m)^fresh +{verdict} +[1-9] s +\d+ s CPU .*, beside others$")
            self.assertRegex(answer.stdout, r"(?m)^integrations +ok +[1-9] s +\d+ s CPU   6 passed, .*, beside others$")

    def test_the_wheel_is_made_once(self):
        self.copy("scripts/test", "scripts/parallel")
        (self.tree / "tests").mkdir(exist_ok=True)
        (self.tree / "tests/floors.txt").write_text("")
        self.program("scripts/check-sdist", "true")
        self.program("scripts/test-python", 'echo "python: ${FLASHWAVE_WHEEL_BUILT-no wheel}"')
        for ends, said in (("true", "python: 1"), ("false", "python: no wheel")):
            self.program("scripts/wheel", ends)
            answer = self.run_in_tree("scripts/test", "wheel", "python", PATH=os.environ["PATH"])
            self.assertIn(said, answer.stdout)

    def test_unknown_stages(self):
        self.copy("scripts/test")
        answer = self.run_in_tree("scripts/test", "dance", PATH=os.environ["PATH"])
        self.assertEqual(answer.returncode, 2)
        self.assertIn("no stage 'dance'", answer.stderr)


class Nvcc(Scripts):
    """cmake/ccache/nvcc, for which a script stands in that writes its output and says something."""

    def compile(self, says, status=0):
        self.copy("cmake/ccache/nvcc")
        self.program("compiler", f'for last; do :; done; echo code >"$last"; echo "{says}" >&2; exit {status}')
        command = (self.tree / "cmake/ccache/nvcc", "-c", "x.cu", "-o", "x.cubin")
        answer = self.run_in_tree(*command, FLASHWAVE_TOOL=str(self.bin / "compiler"), FLASHWAVE_ARGUMENT="-cubin")
        self.assertIn(says, answer.stderr)
        return answer.returncode

    def test_what_it_says_and_its_status_are_passed_on(self):
        self.assertEqual(self.compile("ptxas info : registers"), 0)
        self.assertTrue((self.tree / "x.cubin").exists())
        self.assertEqual(self.compile("error", status=3), 3)

    def test_serialised_matrix_instructions_are_an_error(self):
        says = "ptxas info : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
        self.assertEqual(self.compile(says), 1)
        self.assertFalse((self.tree / "x.cubin").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)

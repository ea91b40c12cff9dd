"""flashwave-emu as a program: exit statuses, output, files. Usage: hip_tool_test.py TOOL CODE_OBJECTS"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

CODE = pathlib.Path(sys.argv.pop(2))
TOOL = sys.argv.pop(1)
KERNELS = str(CODE / "hip_kernels.gfx942.co")


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def numbers(line):
    return [float(word) for word in line.split(": ")[1].split()]


class Usage(unittest.TestCase):
    def test_help_of_everything(self):
        self.assertIn("gfx942", run("--help").stdout)
        for command in ("info", "disasm", "run"):
            answer = run(command, "--help")
            self.assertEqual(answer.returncode, 0)
            self.assertIn("usage: flashwave-emu " + command, answer.stdout)

    def test_wrong_usage_is_2_and_says_what(self):
        scale = ("run", KERNELS, "--kernel", "scale")
        for arguments, word in (
            ((), "usage"),
            (("dance",), "dance"),
            (("info",), "FILE"),
            (("info", KERNELS, "--colour"), "--colour"),
            (("info", KERNELS, "--arch"), "needs a value"),
            (("info", KERNELS, "--arch", "gfx1"), "gfx1201"),
            (("run", KERNELS), "past_end"),
            (("run", KERNELS, "--kernel", "skale"), "scale"),
            ((*scale, "buf:64"), "takes 4 arguments"),
            ((*scale, "buf:64", "buf:64", "i64:1", "f32:1"), "argument 2"),
            ((*scale, "buf:64:red"), "randnbf16"),
            ((*scale, "buf:0"), "SIZE"),
            ((*scale, "u8:256"), "does not fit"),
            ((*scale, "i8:-129"), "does not fit"),
            ((*scale, "f32:x"), "not a number"),
            ((*scale, "hex:123"), "odd"),
            ((*scale, "--grid", "1,2,3,4"), "three"),
            ((*scale, "--grid", "0"), "--grid"),
            ((*scale, "--check", "colour"), "lds_race"),
        ):
            answer = run(*arguments)
            self.assertEqual(answer.returncode, 2, arguments)
            self.assertIn(word, answer.stderr, arguments)

    def test_files_that_are_none_are_1(self):
        for path, word in (("/nowhere", "cannot be read"), (__file__, "neither an ELF file"), (TOOL, "AMD")):
            answer = run("info", path)
            self.assertEqual(answer.returncode, 1)
            self.assertIn(word, answer.stderr)


class Inspect(unittest.TestCase):
    def test_info(self):
        text = run("info", KERNELS).stdout
        self.assertIn("target gfx942", text)
        self.assertIn("variable table: 16 bytes", text)
        block = text.split("kernel small_groups\n")[1].split("kernel")[0]
        self.assertIn("wave size 64, workgroups of at most 64 work-items", block)
        self.assertIn("global_buffer", block)
        self.assertIn("occupancy: 8 of 8 waves", block)

    def test_bundle(self):
        bundle = CODE / "hip_kernels.bundle"
        self.assertIn("target gfx1100", run("info", bundle, "--arch", "gfx1100").stdout)
        self.assertIn("target gfx942", run("info", bundle).stdout)
        answer = run("info", bundle, "--arch", "gfx950")
        self.assertEqual(answer.returncode, 1)
        self.assertRegex(answer.stderr, "holds code for .*gfx942.*; the device is gfx950")

    def test_disasm(self):
        text = run("disasm", KERNELS, "--kernel", "lookup").stdout
        self.assertIn("lookup:\n", text)
        self.assertIn("global_load_dword", text)
        self.assertIn("hip_kernels.hip:", text)
        self.assertNotIn("scale:", text)
        self.assertIn("scale:\n", run("disasm", KERNELS).stdout)

    def test_unknown_instructions(self):
        answer = run("info", CODE / "hip_unknown.co")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("image_load", answer.stderr)


class Run(unittest.TestCase):
    def test_results_are_printed_and_written(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            source = pathlib.Path(folder) / "in"
            source.write_bytes(struct.pack("<64f", *range(64)))
            answer = run("run", KERNELS, "--kernel", "scale", "--grid", 1, "--block", 64, "--print", 3, "f32",
                         f"buf:256:out={out}", f"buf:256:file={source}", "i32:64", "f32:-0.5")  # fmt: skip
            self.assertEqual((answer.returncode, answer.stderr), (0, ""))
            self.assertEqual(numbers(answer.stdout.splitlines()[0]), [0, -0.5, -1])
            self.assertEqual(struct.unpack("<64f", out.read_bytes()), tuple(-0.5 * i for i in range(64)))

    def test_patterns(self):
        words = ["buf:16:zero", "buf:16:ones", "buf:16:poison", "buf:16:iota32"]
        for word, first in zip(words, ([0, 0], [0x01010101] * 2, [0xFFFFFFFF] * 2, [0, 1])):
            # past_end with count 0 writes one work-item's float into the first element only.
            answer = run("run", KERNELS, "--kernel", "past_end", "--block", 1, "--print", 4, "u32", word, "i32:3")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            values = numbers(answer.stdout)
            self.assertEqual((values[:2], values[3]), (first, 0x3F800000))
        same = [run("run", KERNELS, "--kernel", "past_end", "--block", 1, "--print", 8, "bf16", "buf:16:randnbf16",
                    "i32:3").stdout for _ in range(2)]  # fmt: skip
        self.assertEqual(same[0], same[1])
        self.assertTrue(any(number not in (0, 1) for number in numbers(same[0])))

    def test_reports_are_1(self):
        answer = run("run", KERNELS, "--kernel", "past_end", "--block", 64, "buf:256", "i32:32")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("past the end of the allocation of 256 bytes", answer.stderr)
        wrong = ("run", KERNELS, "--kernel", "uninitialised", "buf:256")
        self.assertEqual(run(*wrong).returncode, 1)
        self.assertIn("read before it was ever written", run(*wrong).stderr)
        self.assertEqual(run(*wrong, "--no-check").returncode, 0)
        self.assertEqual(run(*wrong, "--check", "wait,lds_race").returncode, 0)
        self.assertEqual(run(*wrong, "--hazards", "assembly").returncode, 1)
        self.assertIn("--hazards must be compiler or assembly", run(*wrong, "--hazards", "none").stderr)

    def test_trace(self):
        answer = run("run", KERNELS, "--kernel", "lookup", "--trace", "-", "buf:256")
        lines = [line for line in answer.stdout.splitlines() if " wave 0 " in line]
        self.assertIn("s_endpgm", lines[-1])
        self.assertTrue(any("global_load_dword" in line and "=a,14,1e,28" in line for line in lines), answer.stdout)

    def test_counters(self):
        common = ("run", KERNELS, "--kernel", "scale", "--grid", 4, "--block", 64, "buf:1K", "buf:1K:zero", "i32:256",
                  "f32:3")  # fmt: skip
        counters = json.loads(run(*common, "--counters", "--json").stdout)
        self.assertEqual((counters["target"], counters["store_bytes"], counters["vmem_bytes"]), ("gfx942", 1024, 2048))
        self.assertEqual(counters["classes"]["vmem_store"], 4)
        self.assertEqual(sum(counters["classes"].values()), counters["instructions"])
        self.assertIn("memory bytes", run(*common, "--counters").stdout)
        self.assertIn("model, for ranking only", run(*common, "--model").stdout)
        self.assertEqual(run(*common, "--numerics", "hardware").returncode, 0)
        for wrong in (("--json",), ("--numerics", "exact")):
            self.assertEqual(run(*common, *wrong).returncode, 2)

    def test_order_and_threads(self):
        common = ("run", KERNELS, "--kernel", "scale", "--grid", 4, "--block", 64, "--print", 256, "f32", "buf:1K",
                  "buf:1K:randn32", "i32:256", "f32:3")  # fmt: skip
        expected = run(*common).stdout
        for options in (("--seed", 5), ("--reverse",), ("--threads", 1), ("--order", "lockstep")):
            self.assertEqual(run(*common, *options).stdout, expected)
        compared = run(*common, "--order", "compare")
        self.assertEqual(compared.returncode, 0)
        verdict = "order: the result is the same with waves one after the other and in lockstep\n"
        self.assertEqual(compared.stdout, expected + verdict)
        answer = run(*common, "--order", "random")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("--order must be waves, lockstep or compare", answer.stderr)


if __name__ == "__main__":
    unittest.main()

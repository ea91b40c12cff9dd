"""The contract of the command line tool: exit statuses, last lines, JSON. Usage: contract_test.py PATH/flashwave"""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOOL = sys.argv.pop(1)


def run(*arguments, environment=None):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=300, env=environment)


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


class Usage(unittest.TestCase):
    def test_help_of_everything(self):
        self.assertEqual(run("--help").returncode, 0)
        for command in ("devices", "explain", "check", "bench", "support"):
            answer = run(command, "--help")
            self.assertEqual(answer.returncode, 0)
            self.assertIn("usage: flashwave " + command, answer.stdout)

    def test_wrong_usage_is_2_and_says_what(self):
        for arguments, word in (
            ((), "usage"),
            (("dance",), "dance"),
            (("check", "--colour"), "--colour"),
            (("check", "colour=red"), "colour"),
            (("check", "--suite", "no-such-suite"), "no-such-suite"),
            (("check", "--filter", "("), "--filter"),
            (("check", "--shard", "3/2"), "--shard"),
            (("check", "--suite"), "--suite"),
            (("explain",), "PROBLEM"),
            (("explain", "d=x"), "d"),
            (("bench", "--op", "sideways"), "--op"),
            (("bench", "sq=8 dropout=0.5"), "dropout"),
            (("bench", "sq=8", "--plot", "/no/such/folder/x.svg"), "/no/such/folder/x.svg"),
            (("explain", "nonsense=1"), "flashwave explain --help"),
            (("devices", "extra"), "extra"),
            (("check", "--suite", "smoke", "--device", "cpu", "--kernel", "my_typo"), "my_typo"),
            (("check", "sq=8", "--device", "cpu", "--kernel", "nope"), "nope"),
        ):
            answer = run(*arguments)
            self.assertEqual(answer.returncode, 2, arguments)
            self.assertIn(word, answer.stderr)
            self.assertEqual(answer.stdout, "", arguments)  # nothing is begun

    def test_unknown_device_is_an_error(self):
        answer = run("check", "--device", "abacus", "sq=8")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("abacus", answer.stderr)


class Devices(unittest.TestCase):
    def test_cpu_comes_first(self):
        listed = run("devices").stdout
        self.assertIn("cpu", listed)
        self.assertRegex(listed, "(?m)^AMD kernels: ")
        self.assertRegex(listed, "(?m)^NVIDIA kernels: ")
        first = json_lines(run("devices", "--json").stdout)[0]
        self.assertEqual(first["device"], "cpu")
        self.assertIn("reference_fwd", first["kernels"])


class Explain(unittest.TestCase):
    def test_json_names_the_kernel_that_check_reports(self):
        words = "b=2 sq=33 hq=4 hk=2 d=32 causal=1 layout=varlen"
        explained = json.loads(run("explain", words, "--device", "cpu", "--json").stdout)
        checked = json_lines(run("check", words, "--device", "cpu", "--json").stdout)[0]
        self.assertEqual(explained["kernel"], checked["kernel"])

    def test_large_problem_needs_no_memory(self):
        self.assertEqual(run("explain", "b=512", "sq=1000000", "hq=64", "d=128", "--device", "cpu").returncode, 0)

    def test_a_kernel_before_the_chosen_one_is_told_of_once(self):
        words = ("b=2", "sq=1024", "hq=8", "d=64", "dtype=bf16", "--device", "gfx942")
        answer = run("explain", *words)
        if answer.returncode != 0:
            self.skipTest("built without kernels for gfx942")
        self.assertLess(len(answer.stdout.splitlines()), 22, answer.stdout)
        self.assertIn("is made for seqlen_q <= 16, got 1024", answer.stdout)
        self.assertRegex(answer.stdout, r"and \d+ kernels for other GPUs or element types")
        self.assertNotIn("_f16_", answer.stdout)
        every = run("explain", *words, "--all").stdout
        refused = json.loads(run("explain", *words, "--json").stdout)["refused"]
        self.assertGreater(len(refused), 40)
        for refusal in refused:
            self.assertIn(refusal["kernel"] + ": " + refusal["reason"], every)
        self.assertEqual(len(every.splitlines()) - len(refused), 11)

    def test_answers_for_gpus_that_are_not_here(self):
        planned = 0
        for arch in ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_75", "sm_80", "sm_90", "sm_120"):
            for words in ("b=2 sq=1024 hq=8 d=64 dtype=bf16", "op=bwd b=1 sq=300 hq=4 hk=2 d=128 dtype=f16 causal=1"):
                answer = json.loads(run("explain", words, "--device", arch, "--json").stdout)
                self.assertEqual(answer["device"], arch)
                if answer["status"] == "unsupported":
                    self.assertIn("no machine code for " + arch, answer["message"])
                    continue
                planned += 1
                self.assertNotIn("reference", answer["kernel"])
                emulated = run("explain", words, "--device", "emu:" + arch, "--json")
                if arch.startswith("gfx") and emulated.returncode == 0:  # the same plan as where it can be run
                    other = json.loads(emulated.stdout)
                    self.assertEqual({**answer, "device": None}, {**other, "device": None})
        listed = run("devices").stdout
        if "left out" not in listed:
            self.assertGreater(planned, 0)
        table = run("support", "--device", "cpu,gfx1100,sm_90").stdout
        self.assertIn("gfx1100 forward", table)
        self.assertIn("sm_90 backward", table)

    def test_nothing_runs_on_an_architecture(self):
        for command in (("check", "sq=8"), ("bench", "sq=8")):
            answer = run(*command, "--device", "gfx942")
            self.assertEqual(answer.returncode, 1)
            self.assertIn("nothing runs on gfx942", answer.stderr)
            self.assertIn("emu:gfx942", answer.stderr)
            self.assertEqual(answer.stdout, "")
        unknown = run("explain", "sq=8", "--device", "gfx9")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("gfx942", unknown.stderr)
        self.assertIn("sm_90", unknown.stderr)

    def test_switches_of_flash_attentions_rocm_fork(self):
        """On AMD GPUs they allow weights that are cut off, as FLASHWAVE_FAST_ROUNDING does, and one multiplies fp16 as bf16;
        elsewhere they mean nothing."""
        mode, rtz = "FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE", "FLASH_ATTENTION_INTERNAL_USE_RTZ"

        def kernel(device, words, **switches):
            environment = {**os.environ, **switches}
            return json.loads(run("explain", words, "--device", device, "--json", environment=environment).stdout)["kernel"]

        words = "b=2 sq=1024 hq=8 d=64 dtype=bf16"
        nearest = kernel("gfx942", words)
        if nearest is None:
            self.skipTest("built without kernels for gfx942")
        self.assertFalse(nearest.endswith("_rtz"))
        for on in ({mode: "1"}, {rtz: "1"}, {rtz: "on", mode: "0"}):
            self.assertEqual(kernel("gfx942", words, **on), nearest + "_rtz", on)
        for off in ({mode: "0"}, {rtz: "0"}, {mode: "1", rtz: "0"}):
            self.assertEqual(kernel("gfx942", words, **off), nearest, off)
        for value in ("1", "true", "ON", " yes "):
            self.assertEqual(kernel("gfx942", words, FLASHWAVE_FAST_ROUNDING=value), nearest + "_rtz", value)
        for value in ("", "0", "false", "FALSE", "off", "no"):
            self.assertEqual(kernel("gfx942", words, FLASHWAVE_FAST_ROUNDING=value), nearest, value)
        half = words.replace("bf16", "f16")
        self.assertIn("_f16_", kernel("gfx942", half))
        self.assertEqual(kernel("gfx942", half, **{mode: "1"}), nearest + "_rtz")
        self.assertEqual(kernel("gfx942", half, **{mode: "1", rtz: "0"}), nearest)
        self.assertEqual(kernel("gfx942", half, **{rtz: "1"}), kernel("gfx942", half))
        for other in (half + " page=64", half + " bias=full", half.replace("d=64", "d=63")):
            self.assertEqual(kernel("gfx942", other, **{mode: "1"}), kernel("gfx942", other), other)
        for device, of in (("cpu", words), ("cpu", half)):
            self.assertEqual(kernel(device, of, **{mode: "1"}), kernel(device, of))

    def test_deterministic_for_a_whole_process(self):
        environment = {**os.environ, "FLASH_ATTENTION_INTERNAL_DETERMINISTIC": "1"}
        words = ("op=bwd", "sq=64", "--device", "cpu", "--json")
        self.assertNotIn("deterministic=1", run("explain", *words).stdout)
        self.assertIn("deterministic=1", run("explain", *words, environment=environment).stdout)

    def test_refusal_is_1(self):
        answer = run("explain", "sq=8", "d=600", "--device", "cpu")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("dim_qk", answer.stderr)
        answer = run("explain", "sq=8", "d=600", "--device", "cpu", "--json")
        self.assertEqual((answer.returncode, json.loads(answer.stdout)["kernel"]), (1, None))
        answer = run("explain", "sq=8", "kernel=reference_bwd", "--device", "cpu")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("reference_bwd", answer.stdout)


class Check(unittest.TestCase):
    def test_one_problem(self):
        answer = run("check", "--device", "cpu", "b=2", "sq=20", "hq=2", "d=16", "dtype=bf16")
        self.assertEqual(answer.returncode, 0)
        self.assertEqual(answer.stdout.splitlines()[-1], "1 passed, 0 failed, 0 skipped")

    def test_failing_problem_is_reported_with_words_that_rerun_it(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = pathlib.Path(folder) / "suite.txt"
            # The second is refused without saying so beforehand: a failure. The third expects what does not happen.
            suite.write_text("sq=8 d=8\nsq=8 d=600\nsq=8 d=8 expect=refused\n")
            answer = run("check", "--device", "cpu", "--suite", str(suite))
            self.assertEqual(answer.returncode, 1)
            self.assertEqual(answer.stdout.splitlines()[-1], "1 passed, 2 failed, 0 skipped")
            failed = [line for line in answer.stdout.splitlines() if line.startswith("FAILED ")]
            self.assertEqual(len(failed), 2)
            words = failed[0].removeprefix("FAILED ")
            self.assertIn("seed=", words)
            alone = run("check", "--device", "cpu", words)
            self.assertEqual(alone.returncode, 1)
            self.assertEqual(alone.stdout.splitlines()[-1], "0 passed, 1 failed, 0 skipped")

    def test_expected_refusals_are_skipped_and_expected_errors_pass(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = pathlib.Path(folder) / "suite.txt"
            suite.write_text(
                "sq=8 kernel=reference_bwd expect=refused(reference_bwd)\nsq=8 d=600 expect=invalid(dim)\n"
            )
            answer = run("check", "--device", "cpu", "--suite", str(suite))
            self.assertEqual(answer.stdout.splitlines()[-1], "1 passed, 0 failed, 1 skipped")
            self.assertEqual(answer.returncode, 0)

    def test_naive_kernel_in_place_of_ours_is_seen(self):
        # Twice its own error is allowed, so the naive kernel passes: but its error is what bounds ours.
        problem = json_lines(
            run("check", "--json", "--device", "cpu", "--kernel", "naive_fwd", "sq=64 d=32 dtype=bf16").stdout
        )[0]
        self.assertEqual(problem["kernel"], "naive_fwd")
        for tensor in problem["tensors"]:
            self.assertEqual(tensor["error"], tensor["naive_error"])
            self.assertGreaterEqual(tensor["bound"], 2 * tensor["error"])

    def test_a_suite_that_a_kernel_takes_nothing_of_fails(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as suite:
            suite.write("sq=8 d=600 expect=invalid(dim)\nsq=8\n")
            suite.flush()
            arguments = ("check", "--device", "cpu", "--suite", suite.name, "--kernel")
            idle = run(*arguments, "reference_bwd")
            self.assertEqual(idle.returncode, 1)
            self.assertIn("no problem was run by reference_bwd", idle.stderr)
            self.assertIn("1 skipped: ", idle.stdout)
            self.assertEqual(run(*arguments, "reference_fwd").returncode, 0)
        self.assertEqual(run("check", "--device", "cpu", "sq=8", "--kernel", "reference_bwd").returncode, 1)

    def test_death_by_a_signal_names_the_problem(self):
        slow = subprocess.Popen(
            [TOOL, "check", "--device", "cpu", "b=8 hq=8 sq=2048"], stderr=subprocess.PIPE, text=True
        )
        try:
            slow.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            pass
        slow.send_signal(signal.SIGILL)
        _, text = slow.communicate(timeout=60)
        self.assertEqual(slow.returncode, -signal.SIGILL)
        self.assertIn("while checking: b=8 sq=2048", text)

    def test_forced_kernel_runs_or_fails(self):
        self.assertEqual(run("check", "--device", "cpu", "sq=8 op=bwd kernel=reference_fwd").returncode, 1)
        problem = json_lines(run("check", "--json", "--device", "cpu", "sq=8 kernel=reference_fwd").stdout)[0]
        self.assertEqual((problem["outcome"], problem["kernel"]), ("passed", "reference_fwd"))

    def test_shards_and_filter_partition_the_suite(self):
        common = ("check", "--device", "cpu", "--json", "--filter", "append=.*dtype|dtype=bf16.*append")
        whole = [p["problem"] for p in json_lines(run(*common).stdout)]
        parts = []
        for i in (1, 2, 3):
            parts += [p["problem"] for p in json_lines(run(*common, "--shard", f"{i}/3").stdout)]
        self.assertGreater(len(whole), 5)
        self.assertEqual(sorted(whole), sorted(parts))

    def test_problems_for_large_devices_are_passed_over_by_others(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as suite:
            suite.write("sq=8 units=1\nsq=8 units=1000000\n")
            suite.flush()
            answer = run("check", "--device", "cpu", "--suite", suite.name)
            self.assertEqual(answer.returncode, 0, answer.stdout)
            self.assertEqual(answer.stdout.splitlines()[-1], "1 passed, 0 failed, 1 skipped")
            self.assertIn("1 skipped: of use on devices with 1000000 compute units or more", answer.stdout)

    def test_each_of_several_devices_is_judged(self):
        words = ("check", "--device", "cpu,cpu")
        answer = run(*words, "sq=8")
        self.assertEqual((answer.returncode, answer.stdout.count("  device  cpu\n")), (0, 2), answer.stdout)
        self.assertEqual(answer.stdout.splitlines()[-1], "2 passed, 0 failed, 0 skipped")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as suite:
            suite.write("sq=8 d=600\nsq=8\n")
            suite.flush()
            answer = run(*words, "--suite", suite.name)
            self.assertEqual(answer.returncode, 1)
            self.assertEqual(answer.stdout.splitlines()[-1], "2 passed, 2 failed, 0 skipped")
            self.assertEqual(len(re.findall(r"(?m)^FAILED .* on cpu$", answer.stdout)), 2)
            idle = run(*words, "--suite", suite.name, "--kernel", "reference_bwd")
            self.assertEqual(idle.stderr.count("no problem was run by reference_bwd on cpu"), 2)

    def test_nothing_checked_is_not_success(self):
        self.assertEqual(run("check", "--device", "cpu", "--filter", "no such words").returncode, 1)

    def test_seed_changes_the_data(self):
        errors = {
            json_lines(run("check", "--json", "--device", "cpu", "sq=40 d=32", "--seed", s).stdout)[0]["tensors"][0][
                "error"
            ]
            for s in ("1", "2", "3")
        }
        self.assertGreater(len(errors), 1)


class Bench(unittest.TestCase):
    def test_table_json_and_plot(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = pathlib.Path(folder) / "suite.txt"
            suite.write_text("@samples 2\nsq=64 d=32 hq=2 causal=1\nop=bwd sq=64 d=32 dtype=bf16\nsq=1 sk=300 d=64\n")
            plot = pathlib.Path(folder) / "plot.svg"
            answer = run("bench", "--device", "cpu", "--suite", str(suite), "--plot", str(plot))
            self.assertEqual(answer.returncode, 0, answer.stdout)
            self.assertIn("GFLOP/s", answer.stdout)
            xml.etree.ElementTree.parse(plot)
            rows = json_lines(run("bench", "--device", "cpu", "--suite", str(suite), "--json").stdout)
            self.assertEqual(len(rows), 3)
            for row in rows:
                self.assertTrue(row["ok"])
                self.assertEqual(row["samples"], 2)
                self.assertGreater(row["ms_p50"], 0)
                self.assertGreater(row["standard_ms"], 0)
                self.assertGreater(row["flops"], 0)
            self.assertGreater(rows[2]["kv_gbs"], 0)
            only = json_lines(run("bench", "--device", "cpu", "--suite", str(suite), "--json", "--op", "bwd").stdout)
            self.assertEqual([row["problem"].startswith("op=bwd") for row in only], [True])

    def test_a_plot_that_fails_its_measurement_leaves_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = pathlib.Path(folder) / "x.svg"
            self.assertEqual(run("bench", "--suite", "no-such-suite", "--plot", str(plot)).returncode, 2)
            self.assertFalse(plot.exists())

    def test_memory_that_does_not_suffice_is_told(self):
        huge = "b=64 sq=65536 hq=64 d=128"
        for command in ("check", "bench"):
            answer = run(command, "--device", "cpu", huge)
            self.assertEqual(answer.returncode, 1)
            self.assertIn("of the host's memory, which has", answer.stdout)

    def test_memory_that_the_system_refuses_is_told(self):
        program = pathlib.Path(TOOL).read_bytes()
        if b"__asan_init" in program or b"__tsan_init" in program:
            self.skipTest("a sanitizer reserves more address space than the limit")
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        words = [TOOL, "check", "--device", "cpu", "b=1 sq=65536 hq=40 d=128"]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=300, preexec_fn=limit)
        self.assertEqual(answer.returncode, 1)
        self.assertIn("memory does not suffice", answer.stdout)
        self.assertNotIn("bad_alloc", answer.stdout + answer.stderr)

    def test_refused_problem_fails(self):
        answer = run("bench", "--device", "cpu", "--samples", "1", "sq=8 d=600")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("FAIL", answer.stdout)


EMULATED = "emu:gfx908"


def has_amd_kernels():
    return run("explain", "sq=8", "--device", EMULATED).returncode == 0


@unittest.skipUnless((pathlib.Path(TOOL).parent / "libflashwave_emu.so").exists(), "the emulator is not built")
class Emulated(unittest.TestCase):
    def test_is_named_but_not_listed(self):
        listed = run("devices").stdout
        emulated = re.findall(r"gfx\w{3,}", run("explain", "sq=8", "--device", "emu:gfx1").stderr)
        self.assertIn("gfx908", emulated)
        for gpu in emulated:
            self.assertIn(f"emu:{gpu}", listed)
        self.assertNotIn("emu", {device["kind"] for device in json_lines(run("devices", "--json").stdout)})

    def setUp(self):
        if not has_amd_kernels():
            self.skipTest("built without kernels of AMD GPUs")

    def test_explain_names_its_kernels(self):
        answer = json.loads(run("explain", "sq=8", "dtype=f32", "--device", EMULATED, "--json").stdout)
        self.assertEqual((answer["status"], answer["kernel"]), ("ok", "amd_generic_fwd_f32"))
        answer = json.loads(run("explain", "sq=256", "d=64", "dtype=bf16", "--device", EMULATED, "--json").stdout)
        self.assertTrue(answer["kernel"].startswith("cdna1_fwd_bf16_d64"), answer["kernel"])
        words = ("sq=1", "sk=70000", "d=64", "dtype=bf16", "--device", EMULATED, "--json")
        self.assertEqual(json.loads(run("explain", *words).stdout)["then"], ["amd_combine"])

    def test_check_runs_them(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = pathlib.Path(folder) / "suite.txt"
            suite.write_text("sq=8 d=8\nop=bwd sq=8 d=8\nsq=8 d=8 append=2 sk=16\n")
            answer = run("check", "--device", EMULATED, "--suite", str(suite))
            self.assertEqual(answer.stdout.splitlines()[-1], "3 passed, 0 failed, 0 skipped")
            self.assertEqual(answer.returncode, 0)
        both = json_lines(run("check", "--json", "--device", f"{EMULATED},cpu", "op=bwd sq=8 dtype=bf16").stdout)
        self.assertEqual([problem["device"] for problem in both], [EMULATED, "cpu"])
        alone = json_lines(run("check", "--json", "--device", "cpu", "op=bwd sq=8 dtype=bf16").stdout)
        for problem in both + alone:  # the same data and yardsticks, whoever asks first
            self.assertEqual(problem["outcome"], "passed")
            yardsticks = [(tensor["tensor"], tensor["naive_error"], tensor["bound"]) for tensor in problem["tensors"]]
            self.assertEqual(
                yardsticks, [(t["tensor"], t["naive_error"], t["bound"]) for t in alone[0]["tensors"]]
            )
        self.assertEqual([t["error"] for t in both[1]["tensors"]], [t["error"] for t in alone[0]["tensors"]])
        problem = json_lines(run("check", "--json", "--device", EMULATED, "sq=8", "dtype=f32").stdout)[0]
        self.assertEqual((problem["outcome"], problem["kernel"]), ("passed", "amd_generic_fwd_f32"))

    def test_bench_has_counters_and_no_times(self):
        answer = run("bench", "--device", EMULATED, "sq=8")
        self.assertEqual(answer.returncode, 0)
        self.assertIn("instruction-level emulator", answer.stdout)
        self.assertNotIn("GFLOP/s", answer.stdout)
        row = json_lines(run("bench", "--device", EMULATED, "--json", "sq=8", "dtype=f32").stdout)[0]
        self.assertTrue(row["ok"])
        self.assertEqual([launch["kernel"] for launch in row["launches"]], ["amd_generic_fwd_f32"])
        self.assertGreater(row["launches"][0]["counters"]["instructions"], 0)
        self.assertFalse([name for name in row if "ms" in name.split("_")])
        for option in (("--samples", "3"), ("--rounds", "2"), ("--plot", "x.svg")):
            answer = run("bench", "--device", EMULATED, "sq=8", *option)
            self.assertEqual(answer.returncode, 2)
            self.assertIn(option[0], answer.stderr)

    def test_support_asks_it(self):
        table = run("support", "--device", "cpu," + EMULATED).stdout
        self.assertIn("cpu forward", table)
        self.assertIn(EMULATED + " forward", table)
        self.assertIn("generic", table)
        self.assertNotIn("refused", table)

    def test_fmha_benchmark(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = pathlib.Path(folder) / "bytes.svg"
            answer = fmha("--device", EMULATED, "--batch", "2", "--plot", str(plot))
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
            drawn = plot.read_text()
            xml.etree.ElementTree.fromstring(drawn)
            self.assertIn("least", drawn)
        self.assertEqual(answer.stdout.count(": 1.000x"), 4, answer.stdout)
        self.assertEqual(answer.stdout.count("amd_tiny_f16"), 4)
        shapes = re.findall(r"heads (\d+), seq 1/2, dim (\d+)", answer.stdout)
        self.assertEqual(shapes, [("16", "256"), ("16", "128"), ("32", "256"), ("32", "128")])


def fmha(*arguments):
    program = pathlib.Path(TOOL).parent / "fmha_benchmark"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)


class Fmha(unittest.TestCase):
    def test_help_and_wrong_usage(self):
        answer = fmha("--help")
        self.assertEqual(answer.returncode, 0)
        self.assertIn("usage: fmha_benchmark", answer.stdout)
        for arguments, word in (
            (("--batch", "0"), "--batch"),
            (("--batch", "2x"), "--batch"),
            (("--dtype", "fp32"), "fp16 or bf16"),
            (("--config", "1,2,3"), "seven numbers"),
            (("--heads-kv", "3"), "multiple"),
            (("--colour",), "--colour"),
            (("--plot", "/no/such/folder/x.svg"), "/no/such/folder"),
        ):
            answer = fmha(*arguments)
            self.assertEqual(answer.returncode, 2, arguments)
            self.assertIn(word, answer.stderr)

    def test_all_seven_numbers(self):
        answer = fmha("--device", "cpu", "--config", "3,8,2,5,7,64,32", "--config", "2,4,4,1,2,128,128")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("[batch 3, heads 8/2, seq 5/7, dim 64/32]", answer.stdout)
        self.assertIn("[batch 2, heads 4, seq 1/2, dim 128]", answer.stdout)
        self.assertEqual(answer.stdout.count(", ok"), 2)
        by_options = "--batch 3 --heads-q 8 --heads-kv 2 --seq-q 5 --seq-kv 7 --dim-q 64 --dim-kv 32 --iterations 2"
        answer = fmha("--device", "cpu", *by_options.split())
        self.assertEqual(answer.stdout.count("[batch 3, heads 8/2, seq 5/7, dim 64/32]"), 4)
        self.assertEqual(answer.stdout.count("on average of 2"), 4)
        self.assertIn("heads 12, seq", fmha("--device", "cpu", "--batch", "1", "--heads-q", "12").stdout)


@unittest.skipUnless((pathlib.Path(TOOL).parent / "libflashwave_emu.so").exists(), "the emulator is not built")
class EmulatedNames(unittest.TestCase):
    def test_unknown_ones_list_the_known(self):
        answer = run("explain", "sq=8", "--device", "emu:gfx1")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("gfx90a, gfx942", answer.stderr)


class Support(unittest.TestCase):
    def test_table_and_markdown(self):
        self.assertIn("causal", run("support").stdout)
        lines = run("support", "--markdown").stdout.splitlines()
        self.assertTrue(all(line.startswith("|") and line.endswith("|") for line in lines))
        self.assertEqual({line.count("|") for line in lines}, {lines[0].count("|")})
        plain = next(line for line in lines if line.startswith("| plain"))
        self.assertNotIn("refused", plain)


class Documents(unittest.TestCase):
    def test_support_table_is_current(self):
        """docs/support.md has a column pair per device; those of the CPU can be asked for anywhere."""
        page = pathlib.Path(__file__).parents[2] / "docs" / "support.md"
        documented = [line for line in page.read_text().splitlines() if line.startswith("|")]
        printed = [line for line in run("support", "--markdown").stdout.splitlines() if line.startswith("|")]
        self.assertGreater(len(printed), 20)
        # feature | cpu forward | cpu backward | ...
        first_columns = lambda table: [[cell.strip() for cell in line.split("|")[1:4]] for line in table]
        self.assertEqual(first_columns(documented), first_columns(printed))


if __name__ == "__main__":
    unittest.main()

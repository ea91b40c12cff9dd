"""The benchmarks: tiny runs of every table, files that parse, wrong results that are noticed."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from flashwave import functions as interface
from flashwave.backends.torch import backend as torch_backend
from flashwave.bench import memory, svg, train
from flashwave.bench.__main__ import TABLES, main
from flashwave.bench.bert import BERT_BASE, Bert, Config
from flashwave.bench.plan import Planner, Settings
from flashwave.bench.timing import measure
from flashwave.bench.verify import WrongResult, check
from flashwave.bench.workloads import BACKWARD, BOTH, FORWARD, OURS, PEERS, Shape, backends_on, draw, make_call

CPU = torch.device("cpu")
SHAPE = Shape(batch=2, seqlen=40, heads=3, dim=16)
ROOT = Path(__file__).resolve().parents[2]
right = interface.flash_attn_func


def load_script(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(**changes) -> Settings:
    usual = Settings(CPU, torch.float32, ("standard", "sdpa"), False, True, False, budget=1.0, memory_budget=1 << 30)
    return usual._replace(**changes)


# ----------------------------------------------------------------------------------------------------------- the tables


def rows_of(markdown: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_in_every_format(table, tmp_path, capsys):
    json_path = tmp_path / "numbers.json"
    assert main(["--quick", "--device=cpu", f"--tables={table}", f"--out={tmp_path}", f"--json={json_path}"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # no terminal, no progress bar
    content = json.loads(json_path.read_text())
    (found,) = content["tables"]
    assert found["name"] == table and content["environment"]["threads"] == torch.get_num_threads()
    assert len(found["rows"]) == {"masking": 8, "train": 12}.get(table, 2)
    written = (tmp_path / "benchmarks.md").read_text()
    assert f"({table}.svg)" in written
    assert found["title"] in written and found["title"] in printed.out
    header, _, *rows = [row for row in rows_of(written) if len(row) > 2]
    assert len(rows) == len(found["rows"]) and all(len(row) == len(header) for row in rows)
    root = ElementTree.parse(tmp_path / f"{table}.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_times_and_counts_of_a_row(tmp_path):
    path = tmp_path / "numbers.json"
    arguments = [
        "--quick",
        "--device=cpu",
        "--causal",
        "--dtype=bf16",
        "--peers=sdpa",
        "--tables=backward",
        "--budget=1",
    ]
    assert main([*arguments, f"--json={path}"]) == 0
    for row in json.loads(path.read_text())["tables"][0]["rows"]:
        assert set(row["seconds"]) == {OURS, "sdpa"} and row["causal"]
        assert all(0.0 < seconds < 60.0 for seconds in row["seconds"].values())
        assert all(count >= 1 for count in row["samples"].values())


def test_standard_attention_over_the_memory_budget_is_a_dash(capsys):
    assert main(["--quick", "--device=cpu", "--tables=seqlen,memory", "--memory-budget=1e-9"]) == 0
    printed = capsys.readouterr().out
    assert "standard PyTorch left out: needs" in printed
    timed = next(row for row in rows_of(printed) if row[0] == "64")
    assert timed[4:6] == ["-", "-"] and timed[6] != "-"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tables=nothing"],
        ["--peers=flashwave"],
        ["--device=abacus"],
        ["--dtype=fp64"],
        ["--dropout=1"],
        ["--padding=0.5"],
    ],
)
def test_an_option_that_means_nothing_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert arguments[0].split("=")[0] in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- wrong results


def garbage(*arguments, **options):
    out = right(*arguments, **options)
    return out + torch.randn_like(out)


def last_row_unwritten(*arguments, **options):
    out = right(*arguments, **options)
    return torch.cat([out[:, :-1], torch.empty_like(out[:, -1:])], dim=1)


def mask_forgotten(*arguments, causal=False, **options):
    return right(*arguments, **options)


def wrong_gradient_of_k(q, k, v, **options):
    return right(q, k * 1.01 - 0.01 * k.detach(), v, **options)


@pytest.mark.parametrize("table", TABLES)
def test_garbage_stops_every_table(table, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(interface, "flash_attn_func", garbage)
    assert main(["--quick", "--device=cpu", f"--tables={table}", f"--out={tmp_path}"]) == 1
    printed = capsys.readouterr()
    assert "wrong result" in printed.err and printed.out == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["bench/benchmark_flash_attention.py", "bench/python_vs_sdpa.py"])
def test_garbage_stops_the_scripts(script, monkeypatch, capsys):
    monkeypatch.setattr(interface, "flash_attn_func", garbage)
    assert load_script(script).main(["--quick"]) == 1
    assert "wrong result" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_the_check_passes_right_results(dtype, causal):
    shape = SHAPE._replace(causal=causal)
    check(shape, draw(shape, dtype, CPU), gradients=True)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (garbage, "out is off"),
        (last_row_unwritten, "not written"),
        (mask_forgotten, "out is off"),
        (wrong_gradient_of_k, "dk is off"),
    ],
)
def test_the_check_notices(wrong, message, monkeypatch):
    monkeypatch.setattr(interface, "flash_attn_func", wrong)
    shape = SHAPE._replace(causal=True)
    with pytest.raises(WrongResult, match=message):
        check(shape, draw(shape, torch.float32, CPU), gradients=wrong is wrong_gradient_of_k)


def test_the_check_leaves_torch_as_it_was():
    check(SHAPE, draw(SHAPE, torch.float32, CPU), gradients=False)
    assert torch.get_deterministic_debug_mode() == 0


# ------------------------------------------------------------------------------------------------- parts of the program


@pytest.mark.parametrize("padding", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("peer", ["standard", "sdpa", "native", "torch"])
def test_peers_compute_the_same(peer, causal, padding):
    shape = SHAPE._replace(causal=causal, padding=padding)
    inputs = draw(shape, torch.float32, CPU)
    kept = torch.arange(shape.seqlen) < torch.tensor(shape.lengths())[:, None]
    if padding:  # the others compute something for positions without a token, too
        inputs = inputs._replace(dout=inputs.dout * kept[..., None, None])
    for direction in (FORWARD, BACKWARD, BOTH):
        ours, theirs = (make_call(name, inputs, shape, direction)() for name in (OURS, peer))
        for a, b in zip(*((result,) if direction == FORWARD else result for result in (ours, theirs))):
            b = b.transpose(-3, -2) if PEERS[peer].heads_first else b
            b = b[kept] if padding and PEERS[peer].heads_first else b
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_padding_is_as_much_as_asked_for():
    for batch in (1, 2, 7, 16):
        shape = Shape(batch, 1000, 2, 32, padding=0.25)
        lengths = shape.lengths()
        assert sum(lengths) / batch == pytest.approx(750, rel=0.01) and 500 <= min(lengths) <= max(lengths) <= 1000
        assert shape.flops(FORWARD) == 4 * 2 * 32 * sum(length**2 for length in lengths)
    assert Shape(3, 10, 1, 8).lengths() == [10] * 3


@pytest.mark.parametrize("padding", [0.0, 0.25])
def test_dropout_is_timed_with_dropout(padding):
    shape = Shape(2, 64, 4, 32, dropout=0.5, padding=padding)
    inputs = draw(shape, torch.float32, CPU)
    inputs = inputs._replace(q=torch.zeros_like(inputs.q), v=torch.ones_like(inputs.v))
    for name in (OURS, "standard", "sdpa"):
        out = make_call(name, inputs, shape, FORWARD)()
        if padding and PEERS[name].heads_first:
            out = out[:, :, : shape.lengths()[-1]]
        assert abs(float(out.mean()) - 1.0) < 0.05 and float(out.std()) > 0.05


def test_flops_are_those_of_the_products():
    shape = Shape(16, 1024, 12, 64)
    assert shape.flops(FORWARD) == 4 * 16 * 12 * 1024**2 * 64
    assert shape.flops(BACKWARD) + shape.flops(FORWARD) == shape.flops(BOTH)
    assert shape._replace(causal=True).flops(BOTH) == shape.flops(BOTH) / 2


def test_calls_take_turns_and_one_without_memory_is_left_out():
    order = []

    def full():
        raise torch.cuda.OutOfMemoryError("full")

    measured = measure({"a": lambda: order.append("a"), "full": full, "b": lambda: order.append("b")}, CPU, 1e-3)
    assert measured["full"].seconds is None
    assert measured["a"].samples and measured["b"].samples  # how many each gets depends on the machine's load
    assert "".join(order).count("ab") >= 1 and measured["a"].seconds > 0.0
    with pytest.raises(RuntimeError, match="something else"):
        measure({"broken": lambda: (_ for _ in ()).throw(RuntimeError("something else"))}, CPU, 1e-3)


def test_a_slow_call_is_sampled_once_and_a_quick_one_beside_it_more_often():
    measured = measure({"quick": lambda: time.sleep(1e-3), "slow": lambda: time.sleep(0.5)}, CPU, 0.2)
    assert len(measured["slow"].samples) == 1 and len(measured["quick"].samples) >= 5


def test_memory_of_standard_attention_is_that_of_its_matrices():
    shape = Shape(1, 256, 2, 32)
    inputs, matrix = draw(shape, torch.float32, CPU), shape.matrix_bytes(torch.float32)
    assert 2 * matrix <= memory.peak("standard", inputs, shape, FORWARD) < 2.5 * matrix
    assert 3 * matrix <= memory.peak("standard", inputs, shape, BOTH) < 4 * matrix
    output = inputs.q.nbytes
    for option in ({}, {"dropout": 0.1}, {"padding": 0.2}):
        assert output / 2 < memory.peak(OURS, inputs, shape._replace(**option), FORWARD) < 2 * matrix


def test_memory_that_does_not_fit_is_measured_on_a_part(capsys, tmp_path):
    """With room for everything, and for one head of one sequence: the same numbers, the second's marked, no hole."""
    path, found = tmp_path / "memory.json", []
    for budget in (1.0, 2.5 * 64 * 64 * 4 * 2 / 2**30):
        arguments = ["--quick", "--device=cpu", "--tables=memory", f"--memory-budget={budget}", f"--json={path}"]
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        rows = json.loads(path.read_text())["tables"][0]["rows"]
        found.append([row[direction]["standard"] for row in rows for direction in (FORWARD, BOTH)])
        cells = [cell for row in rows_of(printed) if len(row) > 5 for cell in row]
        assert "-" not in cells
        marked = [cell for cell in cells if cell.startswith("≈")]
        assert bool(marked) == (budget < 1.0) == ("in proportion to both" in printed)
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_the_batch_is_halved_until_it_fits():
    shape = Shape(16, 8192, 12, 64)
    planner = Planner(settings(budget=1.0))
    planner._rates = {(name, FORWARD): 1e12 for name in (OURS, "standard", "sdpa")}
    assert shape.flops(FORWARD) / 1e12 == pytest.approx(3.3, rel=0.01)
    assert planner.fitting_batch(shape, FORWARD) == 1
    assert Planner(settings(full=True)).fitting_batch(shape, FORWARD) == 16
    planner._rates["standard", FORWARD] = 1e9
    one = shape._replace(batch=1)
    part, parts = planner.share("standard", FORWARD, shape._replace(seqlen=1024))
    assert (part.batch, part.heads, parts) == (1, 12, 16)  # 3.2 s of a budget of 1: not far over it
    assert "s a call" in planner.reason_to_skip("standard", FORWARD, one._replace(heads=1))
    assert planner.reason_to_skip(OURS, FORWARD, shape) is None
    assert "GiB" in planner.reason_to_skip("standard", FORWARD, shape)


def test_encoders_agree_whatever_the_attention():
    config = Config("test", layers=2, hidden=32, heads=4, feed_forward=48, vocabulary=50, seqlen=24)
    torch.manual_seed(0)
    model, tokens = Bert(config), torch.randint(50, (2, 24))
    with torch.no_grad():
        ours, *theirs = [model.encode(tokens, name) for name in (OURS, "standard", "sdpa", "native", "torch")]
    for other in theirs:
        torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-4)


def test_the_backends_of_a_device():
    assert backends_on(CPU, torch.float32) == ("native", "torch")
    assert backends_on(CPU, torch.float64) == ("torch",)


def test_each_backend_is_checked_before_it_is_timed(monkeypatch, capsys):
    """Also one that the rules would not choose."""
    monkeypatch.setattr(torch_backend, "forward", lambda problem, *_: (problem.q + 1, problem.q[..., 0], None))
    assert main(["--quick", "--device=cpu", "--tables=backends"]) == 1
    assert "wrong result" in capsys.readouterr().err


def test_a_curve_that_leaves_the_noise_is_noticed(monkeypatch, capsys):
    right_curve = train.curve

    def wrong_curve(config, attention, *rest):
        losses = right_curve(config, attention, *rest)
        return [loss + (0.5 if attention == OURS and config.causal else 0.0) for loss in losses]

    monkeypatch.setattr(train, "curve", wrong_curve)
    assert main(["--quick", "--device=cpu", "--tables=train"]) == 1
    printed = capsys.readouterr().out
    assert "a small decoder, dropout 0: flashwave is outside the noise." in printed
    assert "encoder, not BERT-base, dropout 0: flashwave is outside" not in printed


def test_curves_fall_and_depend_on_nothing_but_the_seed():
    config = train._QUICK_GPT._replace(dropout=0.1)
    first, same, other = (train.curve(config, OURS, seed, 4, 25, settings()) for seed in (1, 1, 2))
    assert first == same and first != other
    assert first[-1] < first[0] - 0.05


def test_bert_base_has_the_size_of_bert_base():
    with torch.device("meta"):
        model = Bert(BERT_BASE)
    assert len(model.layers) == 12
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(109.5e6, rel=0.01)


def test_a_chart_escapes_and_shows_what_is_missing():
    chart = svg.Chart("a < b & c", "", "x", "y", ("1", "2"), {"<one>": (1.0, None), "two": (2.0, 0.25)}, baseline=1.0)
    root = ElementTree.fromstring(svg.draw(chart))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in texts and "<one>" in texts and "-" in texts and "0.25" in texts


def test_charts_in_a_grid_do_not_overlap():
    one = svg.Chart("one", "", "x", "y", ("1", "2"), {"a": (1.0, 2.0)})
    wide = one._replace(title="a title that takes more room than two bars would ever need")
    root = ElementTree.fromstring(svg.grid([one, wide, one], columns=2))
    places = [
        [int(inner.get(name)) for name in ("x", "y", "width", "height")] for inner in root if inner.get("viewBox")
    ]
    assert len(places) == 3
    (x0, y0, w0, h0), (x1, y1, w1, _), (x2, y2, _, h2) = places
    assert (x0, y0, y1, x2) == (0, 0, 0, 0) and x1 >= x0 + w0 and y2 >= h0 and w1 > w0
    assert int(root.get("width")) >= x1 + w1 and int(root.get("height")) >= y2 + h2


# ------------------------------------------------------------------------------------------------------------- scripts


def test_the_script_of_flash_attn_prints_its_layout(capsys):
    assert load_script("bench/benchmark_flash_attention.py").main(["--quick", "--device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### causal=False, headdim=32, batch_size=2, seqlen=64 ###"
    assert [line.split()[0] for line in lines[1:4]] == ["flashwave", "Pytorch", "SDPA"]
    assert len(lines) == 8 and lines[1].count("TFLOPs/s") == 3


def test_the_script_of_flash_attn_with_dropout_and_padding(capsys, tmp_path):
    script = load_script("bench/benchmark_flash_attention.py")
    assert script.main(["--quick", "--device=cpu", "--dropout=0.1", "--padding=0.2", f"--out={tmp_path}"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("TFLOPs/s") == 2 * 3 * 3 and printed.err == ""
    drawn = ElementTree.parse(tmp_path / "benchmark_flash_attention.svg").getroot()
    assert len([inner for inner in drawn if inner.get("viewBox")]) == 4


def test_the_script_of_flash_attn_in_the_blocks_of_02(capsys):
    assert load_script("bench/benchmark_flash_attention.py").main(["--quick", "--device=cpu", "--blocks"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert "dropout 0.1" in first
    titles = [
        f"{name} - {what} pass"
        for name in ("FlashAttention", "PyTorch Standard Attention")
        for what in ("Forward", "Backward", "Forward + Backward")
    ]
    assert lines[::3] == titles
    assert all(line.endswith(" ms") and float(line.split()[0]) > 0.0 for line in lines[1::3])
    assert all("1 measurement, " in line and " runs , " in line for line in lines[2::3])


def test_the_script_of_flash_attn_where_its_readme_says(tmp_path):
    """PYTHONPATH=$PWD python benchmarks/benchmark_flash_attention.py from a checkout, whose package is in python/."""
    command = [sys.executable, "benchmarks/benchmark_flash_attention.py", "--quick", "--device=cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("### causal=False"), done.stderr


@pytest.mark.parametrize("words", [[], ["--replaced"]], ids=["functions", "replaced"])
def test_every_cell_against_sdpa(words, tmp_path, capsys):
    if words and not hasattr(torch.library, "get_kernel"):
        pytest.skip("this torch does not give away the kernels that would be replaced")
    path, threads = tmp_path / "cells.json", torch.get_num_threads()
    try:
        assert load_script("bench/python_vs_sdpa.py").main(["--quick", f"--json={path}", *words]) == 0
    finally:
        torch.set_num_threads(threads)
    content = json.loads(path.read_text())
    assert len(content["cells"]) == 12 and len(content["groups"]) == 6
    for cell in content["cells"]:
        assert cell["ratio"] == pytest.approx(cell["seconds"]["sdpa"] / cell["seconds"]["flashwave"])
    worst = min(content["cells"], key=lambda cell: cell["ratio"])
    assert f"Worst cell of all: {worst['name']}" in capsys.readouterr().out


def test_the_script_against_sdpa_outlives_torchs_onednn(tmp_path):
    """As a program, with nothing set: where torch's 16-bit products crash it limits them, and says so."""
    path = tmp_path / "cells.json"
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    script = ROOT / "bench/python_vs_sdpa.py"
    command = [sys.executable, str(script), "--quick", "--dtypes", "bf16", f"--json={path}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads(path.read_text())["environment"]
    limited = "crashes on this CPU" in done.stderr
    assert facts["ONEDNN_MAX_CPU_ISA"] == ("AVX512_CORE_FP16" if limited else "not set: all the CPU has")
    assert "MKL_ENABLE_INSTRUCTIONS" in facts
    assert (facts["MKL, in its own words"] != "nothing") == torch.backends.mkl.is_available()
    assert "AVX" in facts["oneDNN, in its own words"] or not torch.backends.mkldnn.is_available()


def test_the_cost_of_a_call(tmp_path, capsys):
    path = tmp_path / "overhead.json"
    assert load_script("bench/python_vs_sdpa.py").main(["--quick", "--overhead", f"--json={path}"]) == 0
    found = json.loads(path.read_text())["overhead"]
    assert len(found) == 7
    for case in found:
        assert 0.0 < case["library_least"] < case["python_least"]
        assert (case["sdpa_least"] is not None) == case["name"].startswith("flash_attn_func")
    assert "torch.ops.flashwave.forward" in capsys.readouterr().out


@pytest.mark.parametrize("tiles", [False, True], ids=["no tiles", "tiles"])
def test_gates_of_cpus(tiles, tmp_path, capsys):
    """On a tool that says what it is told: which gates are asked, and that one that is missed is said."""
    script, tool = load_script("bench/cpu_gates.py"), tmp_path / "flashwave"
    tool.write_text(
        f"""#!{sys.executable}
import json, sys
words = dict(word.split("=") for word in sys.argv[2:] if "=" in word)
if sys.argv[1] == "explain":
    print(json.dumps({{"kernel": words["kernel"]}}) if {tiles} else "")
    sys.exit({0 if tiles else 1})
fraction = 0.79 if "page" in words else 0.9
answer = dict(ok=True, fault="", throttled_samples=0, ms_p50=10 / int(words["threads"]), gflops=100.0)
print(json.dumps({{**answer, "ratio_p50": 0.41, "kv_gbs": 20 * fraction, "read_gbs": 20.0}}))
"""
    )
    tool.chmod(0o755)
    path = tmp_path / "gates.json"
    assert script.main([f"--tool={tool}", "--only=loop,threads,split"]) == (1 if tiles else 0)
    assert script.main([f"--tool={tool}", "--only=loop,decode,threads,split", f"--json={path}"]) == 1
    met = {gate["name"]: gate["met"] for gate in json.loads(path.read_text())["gates"]}
    missed = {"decode of a loop that reads, pages of 16"}
    if tiles:
        missed |= {"of the bare loop, d 128, 4096 keys", "of the bare loop, d 128, 8192 keys"}
    assert {name for name, ok in met.items() if not ok} == missed
    assert len(met) == (6 + 4 + 4 if tiles else 6)
    assert "pages of 16" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.main([f"--tool={tool}", "--only=peace"])


@pytest.mark.parametrize("onednn", ["AVX-512", "AVX-512 and Intel AMX"], ids=["vectors", "tiles"])
def test_gates_over_sdpa(onednn, monkeypatch):
    """The goals of bf16 are asked where torch's oneDNN has no tiles; with them its ratios are told."""
    script = load_script("bench/cpu_gates.py")
    asked = []

    def over_sdpa(dtypes, limit):
        asked.append((dtypes, limit))
        group = {"geomean": 3.0, "worst_ratio": 2.0, "worst": "a cell"}
        groups = [{"dtype": dtype, "direction": way, **group} for dtype in dtypes for way in ("forward", "backward")]
        return {"groups": groups, "environment": {"oneDNN, in its own words": "AVX-512" if limit else onednn}}

    monkeypatch.setattr(script, "over_sdpa", over_sdpa)
    assert [gate.goal for gate in script.sdpa(script.Machine(Path("flashwave"), []))] == [None, 1.05] * 2
    gates = script.sdpa(script.Machine(Path("flashwave"), ["amx_fwd_m32n128"]))
    assert asked == [(["fp32"], None), (["fp32", "bf16"], "AVX512_CORE_FP16"), (["bf16"], None)]
    assert [gate.goal for gate in gates[4:8]] == [2.5, 1.5, 6.0, 3.0]
    assert [gate.met for gate in gates[4:8]] == [True, True, False, False]
    assert [gate.goal for gate in gates[8:]] == ([None] * 4 if "AMX" in onednn else [])


def test_report_of_the_script_for_gpus(tmp_path):
    script = load_script("bench/cuda_vs_sdpa.py")
    results = [
        {
            "group": "decode",
            "name": name,
            "unit": "GB/s",
            "seconds": {OURS: 1e-3, "cuDNN": 1e-3 * value},
            "rate": {OURS: 2.0, "cuDNN": 2.0 / value},
            "ratio": {"cuDNN": value},
            "refused": {"math": "no reason"},
        }
        for name, value in (("b=1 keys=8192", 0.5), ("b=16 keys=8192", 2.0))
    ]
    (summary,) = script.summaries(results)
    assert summary["geomean"] == pytest.approx(1.0) and summary["worst"] == "b=1 keys=8192" and summary["cells"] == 2
    (chart,) = script.charts(results, "a GPU")
    assert chart.categories == ("1 x 8192", "16 x 8192") and chart.series["cuDNN"] == (4.0, 1.0)
    content = {"environment": {"device": "a GPU"}, "copy_gb_per_s": 4000.0, "host_us": {"a call": 3.0}}
    script.write(tmp_path, {**content, "cells": results, "wrong": [], "groups": script.summaries(results)})
    page = (tmp_path / "cuda_vs_sdpa.md").read_text()
    assert "| b=16 keys=8192 | 1.000 | 2 | 1 | 2.00x |" in page and "math does not take it: no reason" in page
    assert json.loads((tmp_path / "cuda_vs_sdpa.json").read_text())["cells"] == results
    assert ElementTree.parse(tmp_path / "cuda_vs_sdpa.svg").getroot().tag.endswith("svg")


def test_what_was_measured_on_the_gpu_is_drawn_again(tmp_path):
    """The README's picture and tables are those of the numbers beside them."""
    kept = ROOT / "bench" / "results" / "h200"
    (tmp_path / "cuda_vs_sdpa.json").write_text((kept / "cuda_vs_sdpa.json").read_text())
    script = load_script("bench/cuda_vs_sdpa.py")
    assert script.main(["--redraw", str(tmp_path)]) == 0
    for name in ("cuda_vs_sdpa.md", "cuda_vs_sdpa.svg", "overview.svg"):
        assert (tmp_path / name).read_text() == (kept / name).read_text(), name
    cells = json.loads((kept / "cuda_vs_sdpa.json").read_text())["cells"]
    forward, backward = script.overview(cells, "a GPU")
    rates = [c["rate"]["flashwave"] for c in cells if c["group"] == "backward full" and c["name"].startswith("d=128 ")]
    mean = math.prod(rates) ** (1 / len(rates))
    assert backward.series["flashwave"][backward.categories.index("128 full")] == pytest.approx(mean)
    assert len(forward.categories) == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_script_for_gpus_needs_one(capsys):
    assert load_script("bench/cuda_vs_sdpa.py").main(["--quick"]) == 1
    assert "no NVIDIA GPU" in capsys.readouterr().err

"""Without one of its waits or barriers a kernel that the library ships is reported (shipped.py tries them all)."""

import collections
import pathlib

import numpy as np
import pytest

import hip
import launches
import mutation
import shipped
import waits

HERE = pathlib.Path(__file__).resolve().parent

SAMPLE = 8  # of each GPU's kernel for head dim 128


def results_of(arch, row, sample):
    if not (shipped.FOLDER / f"{row.source}_{arch}.co").exists():
        pytest.skip(f"{shipped.FOLDER} has no kernels for {arch}: this build took an archive of them")
    _, there, results = shipped.mutate((arch, row, sample))
    return there, results, collections.Counter(verdict for _, verdict, _ in results)


def subject_of(arch, row):
    if not (shipped.FOLDER / f"{row.source}_{arch}.co").exists():
        pytest.skip("no code objects")
    return shipped.Subject(arch, row)


def plain(arch, dim):
    return next(row for row in shipped.rows(arch) if row.dim_qk == dim and not row.modified)


def backward(arch, dim):
    """The fused kernel that rounds to nearest."""
    rows = (row for row in shipped.rows(arch) if row.work == "kKeyBlocks" and not row.name.endswith("_rtz"))
    return next(row for row in rows if row.dim_qk == dim)


def whole_head(arch, dim):
    """The one for short sequences, of CDNA."""
    found = [row for row in shipped.rows(arch) if row.op == "kBackward" and row.work != "kKeyBlocks"]
    if not found:
        pytest.skip(f"{arch} has none")
    return next(row for row in found if row.dim_qk == dim)


def modified_backward(arch, dim):
    """That of dK and dV, with every modifier."""
    rows = (row for row in shipped.rows(arch) if "_bwd_dkdv_" in row.name and row.modified)
    return next(row for row in rows if row.dim_qk == dim)


def bias_gradient(arch, _):
    return next(row for row in shipped.rows(arch) if row.op == "kDBias")


# Of the sample, the least that are noticed, and the most that are neither that nor proven redundant. A kernel for a
# head waits for loads that nobody needs in the end; the gradient of bias has waits behind branches, for what the
# branches waited for themselves, and code that no launch here executes.
@pytest.mark.parametrize(
    ("kernel", "noticed", "unproven"),
    ((plain, 4, 1), (backward, 4, 1), (whole_head, 4, 2), (modified_backward, 4, 2), (bias_gradient, 3, 3)),
)
def test_a_sample_of_waits_and_barriers_is_missed(arch, kernel, noticed, unproven):
    there, results, counts = results_of(arch, kernel(arch, 128), SAMPLE)
    assert there > SAMPLE == len(results)
    assert not counts["FALSE"] and not counts["WRONG"], results
    assert counts["noticed"] >= noticed and counts["unproven"] <= unproven, results


def test_every_wait_of_the_pass_after_a_backward_is_missed(arch):
    there, results, counts = results_of(arch, next(row for row in shipped.rows(arch) if row.op == "kFinish"), 0)
    assert there == counts["noticed"] > 20, results


@pytest.mark.full
@pytest.mark.parametrize("modified", (False, True))
@pytest.mark.parametrize("dim", (64, 128))
def test_waits_and_barriers_are_missed(arch, dim, modified):
    row = next(row for row in shipped.rows(arch) if (row.dim_qk, row.modified) == (dim, modified))
    there, results, counts = results_of(arch, row, 0)
    assert there == len(results) and not counts["FALSE"] and not counts["WRONG"], results
    executed = there - counts["unexecuted"]
    assert counts["noticed"] > executed // 2, counts
    assert counts["unproven"] <= executed // 5, [r for r in results if r[1] == "unproven"]


def test_every_backward_on_matrix_cores_is_tried(arch):
    """Of both types, which compile to other waits; and the passes before and after it."""
    offered = shipped.kernel_lists.amd_gpus()[arch]
    there = [row.name for row in shipped.kernel_lists.rows("amd") if row.isa in offered and "_bwd_" in row.name]
    tried = {row.name for row in shipped.rows(arch)}
    assert tried.issuperset(name for name in there if not name.startswith("amd_generic_"))
    assert any("_bwd_f16_" in name for name in tried)


def test_launches_have_a_bias_of_the_type_of_q_alone(arch):
    """RDNA has a loop for it, which no launch of another type executes."""
    modified = [row for row in shipped.rows(arch) if row.op != "kForward" and row.modified]
    assert {"_f16_" in row.name for row in modified} == {False, True}
    for row in modified:
        own = launches.F16 if "_f16_" in row.name else launches.BF16
        alone = [run for run in launches.launches_of(row) if not (run.alibi or run.softcap or run.dropout)]
        assert {1, 2} <= {run.heads for run in alone if run.bias == own}, row.name


def test_which_launch_executes_a_wait(arch):
    """The first wait of a kernel is met in the smallest launch already."""
    subject = subject_of(arch, backward(arch, 128))
    mutants = waits.mutants(subject.lines)
    smallest = min(subject.runs, key=shipped.size_of)
    assert subject.reached(mutants[:1]) == {subject.lines[mutants[0][0]].address: smallest}
    assert subject.verdict(mutants[0], None) == ("unexecuted", "")


def test_a_barrier_for_memory_is_seen_by_the_order_of_waves(arch):
    """Kernels for a head write lse and delta to memory, and all their waves read them behind their first barrier."""
    subject = subject_of(arch, whole_head(arch, 64))
    first = next(m for m in waits.mutants(subject.lines) if not waits.is_wait(subject.lines[m[0]]))
    verdict, said = subject.verdict(first, subject.runs[0])
    assert verdict == "order" and "depends on the order of waves" in said


def test_a_wrong_result_is_seen():
    """Weights that are no exponentials give other gradients: what a hole in the checkers would look like."""
    subject = subject_of("gfx942", backward("gfx942", 64))
    runs = subject.runs[:1]
    assert not subject.is_wrong(subject.code, runs)
    exponentials = [line for line in subject.lines if line.name == "v_exp_f32_e32"]
    wrong = mutation.patched(subject.code, exponentials, mutation.S_NOP)
    assert exponentials and subject.is_wrong(wrong, runs)


def test_a_code_object_of_one_kernel():
    """It has that kernel, which does what it did, and no other."""
    code = hip.compile_kernels(HERE / "kernels" / "shared.hip", "gfx942", "O3")
    alone, numbers = hip.only(code, "scan"), np.arange(256, dtype=np.int32)
    results = [np.zeros_like(numbers) for _ in range(2)]
    for one, result in zip((code, alone), results):
        hip.run("gfx942", one, "scan", 1, 256, [numbers, result])
    assert (results[0] == results[1]).all() and results[1][-1] == numbers.sum()
    assert len(waits.disassemble(alone, "gfx942")) < len(waits.disassemble(code, "gfx942"))
    with hip.Session("gfx942") as session, pytest.raises(hip.HipError, match="no kernel 'transpose'; it has: scan$"):
        session.function(alone, "transpose")
    with pytest.raises(KeyError):
        hip.only(code, "no such kernel")


def test_a_launch_gives_the_right_answer():
    """The launches are of use only if the kernel takes its arguments as meant: no key, no weight, no output but 0."""
    row = plain("gfx942", 128)
    if not (shipped.FOLDER / f"{row.source}_gfx942.co").exists():
        pytest.skip("no code objects")
    code = (shipped.FOLDER / f"{row.source}_gfx942.co").read_bytes()
    launch = launches.Launch(row, 40, 24)
    with hip.Session("gfx942", barriers="counted") as session:
        assert launch.run(session, code) == ""
        out, lse = (buffer.get() for buffer in session.buffers[-2:])
    assert (out[:16] == 0).all() and (lse[:16] == -float("inf")).all()
    assert (out[16:] != 0).any(axis=1).all() and abs(lse[16:]).max() < 10


def test_a_backward_gives_the_right_answer(arch):
    """Keys that no query sees have no gradient; the others have one, and so have all queries."""
    row = backward(arch, 128)
    path = shipped.FOLDER / f"{row.source}_{arch}.co"
    if not path.exists():
        pytest.skip("no code objects")
    launch = launches.BackwardLaunch(row, 20, 128, window=(8, 0))
    with hip.Session(arch, barriers="counted") as session:
        assert launch.run(session, path.read_bytes()) == ""
        dk, dv, _, blocks = (buffer.get() for buffer in session.buffers[-4:])
    for gradient in (dk, dv):
        assert (gradient[:100] == 0).all() and (gradient[100:] != 0).any(axis=1).all()
    first = 32 + 2 * row.tile_q + 32  # the header; lse, delta and the turn of the first block
    sums = blocks[first : first + row.tile_q * row.dim_qk].reshape(row.tile_q, row.dim_qk)
    assert (sums[:20] != -0.5).any(axis=1).all()


def test_a_pass_gives_the_right_answer(arch):
    """dQ is the sums, scaled: of two parts of 0.5 in 64 columns 1 / 8."""
    row = next(row for row in shipped.rows(arch) if row.op == "kFinish")
    path = shipped.FOLDER / f"{row.source}_{arch}.co"
    if not path.exists():
        pytest.skip("no code objects")
    launch = launches.PassLaunch(row, 70, columns=64, dtype=launches.F16, parts=2)
    with hip.Session(arch, barriers="counted") as session:
        assert launch.run(session, path.read_bytes()) == ""
        results = [buffer.get() for buffer in session.buffers]
    whole = [x.view(np.float16) for x in results if x.dtype == np.uint16 and (x.view(np.float16) == 0.125).all()]
    assert [x.shape for x in whole] == [(70, 2 * 64)]


@pytest.mark.parametrize(("dim", "least"), ((64, 0.66), (128, 0.74)))
def test_a_backward_leaves_time_to_the_matrix_units(dim, least):
    """If matrix and vector instructions take turns, what share the matrix units have; and LDS has no bank conflicts."""
    row = backward("gfx942", dim)
    path = shipped.FOLDER / f"{row.source}_gfx942.co"
    if not path.exists():
        pytest.skip("no code objects")
    launch = launches.BackwardLaunch(row, 512, 1024, window=(launches.NO_WINDOW, launches.NO_WINDOW))
    with hip.Session("gfx942", barriers="counted", count=1) as session:
        assert launch.run(session, path.read_bytes()) == ""
        counters = session.counters()[-1]["counters"]
    assert counters["serial_bound"] >= least
    assert counters["lds_clocks"] == counters["lds_ideal_clocks"] and counters["scratch_instructions"] == 0

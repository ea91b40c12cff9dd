"""Without one of its waits or barriers a kernel that the library ships is reported (shipped.py tries them all)."""

import collections

import pytest

import hip
import launches
import shipped

SAMPLE = 8  # of each GPU's kernel for head dim 128


def results_of(arch, row, sample):
    if not (shipped.FOLDER / f"{row.source}_{arch}.co").exists():
        pytest.skip(f"{shipped.FOLDER} has no kernels for {arch}: this build took an archive of them")
    _, there, results = shipped.mutate((arch, row, sample))
    return there, results, collections.Counter(verdict for _, verdict, _ in results)


def plain(arch, dim):
    return next(row for row in shipped.rows(arch) if row.dim_qk == dim and not row.modified)


def backward(arch, dim):
    """The fused kernel."""
    return next(row for row in shipped.rows(arch) if row.work == "kKeyBlocks" and row.dim_qk == dim)


def whole_head(arch, dim):
    """The one for short sequences, of CDNA."""
    found = [row for row in shipped.rows(arch) if row.op == "kBackward" and row.work != "kKeyBlocks"]
    if not found:
        pytest.skip(f"{arch} has none")
    return next(row for row in found if row.dim_qk == dim)


def bias_gradient(arch, _):
    return next(row for row in shipped.rows(arch) if row.op == "kDBias")


# Of the sample, the least that are noticed, and the most that are neither that nor proven redundant. A kernel for a
# head waits for loads that nobody needs in the end; the gradient of bias has waits behind branches, for what the
# branches waited for themselves, and code that no launch here executes.
@pytest.mark.parametrize(
    ("kernel", "noticed", "unproven"), ((plain, 4, 1), (backward, 4, 1), (whole_head, 4, 2), (bias_gradient, 3, 3))
)
def test_a_sample_of_waits_and_barriers_is_missed(arch, kernel, noticed, unproven):
    there, results, counts = results_of(arch, kernel(arch, 128), SAMPLE)
    assert there > SAMPLE == len(results)
    assert not counts["FALSE"], results
    assert counts["noticed"] >= noticed and counts["unproven"] <= unproven, results


@pytest.mark.full
@pytest.mark.parametrize("modified", (False, True))
@pytest.mark.parametrize("dim", (64, 128))
def test_waits_and_barriers_are_missed(arch, dim, modified):
    row = next(row for row in shipped.rows(arch) if (row.dim_qk, row.modified) == (dim, modified))
    there, results, counts = results_of(arch, row, 0)
    assert there == len(results) and not counts["FALSE"], results
    executed = there - counts["unexecuted"]
    assert counts["noticed"] > executed // 2, counts
    assert counts["unproven"] <= executed // 5, [r for r in results if r[1] == "unproven"]


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

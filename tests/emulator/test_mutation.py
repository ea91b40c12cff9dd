"""Without any one of its waits and barriers, a kernel is reported, or that one is proven redundant (mutation.py)."""

import pytest

import accesses
import mutation
import waits

# How many mutants at least are noticed, on every GPU. More than a few kernels only with --full.
LEAST = {
    "gemm_f32": 13,
    "gemm_f16": 3,
    "gemm_bf16": 3,
    "gemm_i8": 3,
    "softmax": 34,
    "layer_norm": 34,
    "transpose": 11,
    "transpose_half": 5,
    "scan": 34,
    "scan_exclusive": 33,
    "sum_shuffle": 16,
    "sum_swizzle": 7,
    "sum_tree": 6,
    "max_dpp": 2,
    "attention_64": 16,
    "attention_64_causal": 15,
    "attention_128": 14,
}
FEW = ("gemm_f16", "transpose", "softmax", "attention_64")


@pytest.mark.parametrize("kernel", [k if k in FEW else pytest.param(k, marks=pytest.mark.full) for k in LEAST])
def test_every_wait_and_barrier_is_missed(arch, kernel):
    _, results = mutation.mutate((arch, "O3", kernel))
    assert mutation.is_good(results), [r for r in results if r[1] in ("MISSED", "FALSE")]
    assert not mutation.count(results, "unexecuted")
    assert mutation.count(results, "noticed") >= LEAST[kernel]


def test_every_kernel_has_its_number():
    assert LEAST.keys() == mutation.KERNELS.keys()


def test_a_checker_that_sees_nothing_is_found_out():
    """With the checks that matter switched off, the same waits are MISSED."""
    _, results = mutation.mutate(("gfx942", "O3", "gemm_f32"), checks="hazard")
    assert mutation.count(results, "MISSED") == len(results) == LEAST["gemm_f32"] + 1


def program(*text):
    """Lines of code at consecutive addresses."""
    lines = []
    for i, line in enumerate(text):
        name, _, operands = line.partition(" ")
        word = 0xBF820000 | int(operands) & 0xFFFF if "branch" in name else 0
        lines.append(waits.Line(4 * i, 4 * i, name, operands, [word], "k"))
        lines[-1].registers = waits.registers_of(operands)
    return lines


def wait_proof(at, *text, arch="gfx942", limit=1024):
    return waits.Kernel(program(*text), arch, limit).wait_proof(at)


def barrier_proof(at, *text, arch="gfx942"):
    return waits.Kernel(program(*text), arch).barrier_proof(at, at + arch.startswith("gfx12"))


LOAD, USE, WAIT = "global_load_dword v1, v[2:3], off", "v_add_u32 v4, v1, v1", "s_waitcnt vmcnt(0)"
SECOND = "global_load_dword v5, v[2:3], off"
WRITE, READ, LDS_WAIT = "ds_write_b32 v0, v1", "ds_read_b32 v2, v3", "s_waitcnt lgkmcnt(0)"
BARRIER, END = "s_barrier", "s_endpgm"


def test_proofs_for_registers():
    assert wait_proof(1, LOAD, WAIT, USE, END) is None
    assert wait_proof(1, LOAD, WAIT, WAIT, USE, END) == "waited for again"
    assert wait_proof(2, LOAD, WAIT, WAIT, USE, END) == "nothing outstanding"
    assert wait_proof(1, LOAD, WAIT, END) == "waited for again"
    # In a loop: the value of the round before is used at its top.
    assert wait_proof(2, USE, LOAD, WAIT, "s_cbranch_scc1 -4", END) is None
    # vmcnt(1) is enough for the first of two loads, and not for the second.
    assert wait_proof(2, LOAD, SECOND, WAIT, "s_waitcnt vmcnt(1)", USE, END) == "waited for again"
    assert wait_proof(3, LOAD, SECOND, WAIT, "s_waitcnt vmcnt(1)", USE, END) == "nothing outstanding"
    assert wait_proof(2, LOAD, SECOND, WAIT, "s_waitcnt vmcnt(1)", "v_add_u32 v4, v5, v5", END) is None
    # A wait on one of two ways is not enough.
    assert wait_proof(3, LOAD, "s_cbranch_scc1 1", WAIT, WAIT, USE, END) is None
    # Scalar loads come back in any order: only a wait for all of them will do.
    scalar = ["s_load_dword s4, s[0:1], 0x0", "s_load_dword s5, s[0:1], 0x4", LDS_WAIT, "s_waitcnt lgkmcnt(1)"]
    assert wait_proof(2, *scalar, "s_add_u32 s6, s4, s4", END) is None
    # Of one register, loads of different kinds, by different ways.
    ways = [LOAD, "s_cbranch_scc1 2", WAIT, "ds_read_b32 v1, v3", WAIT, LDS_WAIT, USE, END]
    assert wait_proof(4, *ways) is None and wait_proof(5, *ways) is None
    assert waits.wait_of(program("s_wait_loadcnt_dscnt 0x102")[0], "gfx1201") == {"loads": 1, "lds": 2}


def test_proofs_for_lds():
    assert wait_proof(1, WRITE, LDS_WAIT, BARRIER, READ, END) is None
    assert barrier_proof(2, WRITE, LDS_WAIT, BARRIER, READ, END) is None
    # Reads, too, must be over before another wave may write.
    assert wait_proof(1, READ, LDS_WAIT, BARRIER, WRITE, END) is None
    assert barrier_proof(1, READ, BARRIER, END) == "no LDS access after it"
    twice = [WRITE, LDS_WAIT, BARRIER, USE, BARRIER, READ, END]
    assert barrier_proof(2, *twice) == "no LDS access after it"
    assert barrier_proof(4, *twice) == "no LDS access before it"
    # The first one does not order what is waited for after it.
    assert barrier_proof(3, WRITE, BARRIER, LDS_WAIT, BARRIER, READ, END) is None
    # Between the halves of the barrier before, the other waves may be anywhere.
    halves = ["s_barrier_signal -1", WRITE, "s_barrier_wait 0xffff", "s_wait_dscnt 0x0"]
    assert barrier_proof(4, *halves, "s_barrier_signal -1", "s_barrier_wait 0xffff", READ, END, arch="gfx1201") is None
    # Memory that is stored before a barrier and loaded after it.
    store = "global_store_dword v[2:3], v0, off"
    assert barrier_proof(1, store, BARRIER, LOAD, END) is None
    stored = ["global_store_b32 v[2:3], v0, off", "s_waitcnt_vscnt null, 0x0", BARRIER]
    assert wait_proof(1, *stored, "global_load_b32 v1, v[2:3], off", END, arch="gfx1100") is None
    assert wait_proof(1, *stored, END, arch="gfx1100") == "memory not shared"


def test_proofs_from_masks():
    """Lanes 512 and on skip the wait: there are none in workgroups of up to 512, and the wait is needed in others."""
    skip = ["v_cmp_gt_u32_e32 vcc, 0x200, v0", "s_and_saveexec_b64 s[4:5], vcc", "s_cbranch_execz 1"]
    code = [LOAD, *skip, WAIT, "s_or_b64 exec, exec, s[4:5]", WAIT, USE, END]
    assert wait_proof(6, *code) is None
    assert wait_proof(6, *code, limit=512) == "nothing outstanding"
    assert wait_proof(6, *code, limit=513) is None
    masked = ["v_add_u32 v0, v0, v0", *code]  # no work-item's id any more
    assert wait_proof(7, *masked, limit=512) is None
    # Two ifs on one mask: where the second is entered, so was the first.
    again = ["s_and_saveexec_b64 s[6:7], vcc", "s_cbranch_execz 2"]
    code = [LOAD, *skip, WAIT, "s_or_b64 exec, exec, s[4:5]", *again, WAIT, USE, END]
    assert wait_proof(8, *code) == "waited for again, since branches agree"
    code[5] = "s_or_b64 exec, exec, s[8:9]"
    assert wait_proof(8, *code) is None


def events(*each):
    """Waves' traces: indices of instructions, or (index, addresses)."""
    pairs = [[e if isinstance(e, tuple) else (e, ()) for e in wave] for wave in each]
    return {"0,0,0": {i: [accesses.Event(*e) for e in wave] for i, wave in enumerate(pairs)}}


def test_what_runs_need():
    kernel = waits.Kernel(program(WRITE, LDS_WAIT, BARRIER, READ, LDS_WAIT, "v_add_u32 v4, v2, v2", END), "gfx942")
    across = events([(0, (0,)), 1, 2, (3, (4,)), 4, 5], [(0, (4,)), 1, 2, (3, (0,)), 4, 5])
    assert not accesses.is_needed(kernel, across, set())
    assert all(accesses.is_needed(kernel, across, {i}) for i in (1, 2, 4))
    alone = events([(0, (0,)), 1, 2, (3, (0,)), 4, 5], [(0, (4,)), 1, 2, (3, (4,)), 4, 5])
    assert not accesses.is_needed(kernel, alone, {1}) and not accesses.is_needed(kernel, alone, {2})
    assert accesses.is_needed(kernel, alone, {4})
    pair = program("ds_read2st64_b64 v[4:7], v1 offset0:1 offset1:2")[0]
    assert accesses.lds_bytes(pair, (8,)) == {*range(520, 528), *range(1032, 1040)}
    assert accesses.lds_bytes(program("ds_write_b16 v1, v2 offset:6")[0], (0, 16)) == {6, 7, 22, 23}

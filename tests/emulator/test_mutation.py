"""Without any one of its waits and barriers, a kernel is reported (mutation.py)."""

import mutation
import pytest
import waits


@pytest.mark.parametrize("kernel", list(mutation.KERNELS))
def test_every_wait_and_barrier_is_missed(arch, kernel):
    *_, count, noticed, _, missed = mutation.mutate((arch, "O3", kernel))
    assert not missed, missed
    assert count and noticed


def program(*text):
    """Lines of code at consecutive addresses."""
    lines = []
    for i, line in enumerate(text):
        name, _, operands = line.partition(" ")
        lines.append(
            waits.Line(
                4 * i, 4 * i, name, operands, [0xBF820000 | int(operands) & 0xFFFF if "branch" in name else 0], "k"
            )
        )
        lines[-1].registers = waits.registers_of(operands)
    return lines


def test_proofs_of_redundancy():
    """The proofs that excuse mutants must not excuse what is needed."""
    load = "global_load_dword v1, v[2:3], off"
    needed = program(load, "s_waitcnt vmcnt(0)", "v_add_u32 v4, v1, v1", "s_endpgm")
    assert not waits.wait_is_redundant(needed, 1, "gfx942")
    twice = program(load, "s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)", "v_add_u32 v4, v1, v1", "s_endpgm")
    assert waits.wait_is_redundant(twice, 1, "gfx942") and waits.wait_is_redundant(twice, 2, "gfx942")
    # In a loop: the value of the round before is used at its top.
    loop = program("v_add_u32 v4, v1, v1", load, "s_waitcnt vmcnt(0)", "s_cbranch_scc1 -4", "s_endpgm")
    assert not waits.wait_is_redundant(loop, 2, "gfx942")
    # vmcnt(1) is enough for the first of two loads, and not for the second.
    pair = program(
        load,
        "global_load_dword v5, v[2:3], off",
        "s_waitcnt vmcnt(0)",
        "s_waitcnt vmcnt(1)",
        "v_add_u32 v4, v1, v1",
        "s_endpgm",
    )
    assert waits.wait_is_redundant(pair, 2, "gfx942") and waits.wait_is_redundant(pair, 3, "gfx942")
    late = program(
        load,
        "global_load_dword v5, v[2:3], off",
        "s_waitcnt vmcnt(0)",
        "s_waitcnt vmcnt(1)",
        "v_add_u32 v4, v5, v5",
        "s_endpgm",
    )
    assert not waits.wait_is_redundant(late, 2, "gfx942")
    # Scalar loads come back in any order: only a wait for all of them will do.
    scalar = program(
        "s_load_dword s4, s[0:1], 0x0",
        "s_load_dword s5, s[0:1], 0x4",
        "s_waitcnt lgkmcnt(0)",
        "s_waitcnt lgkmcnt(1)",
        "s_add_u32 s6, s4, s4",
        "s_endpgm",
    )
    assert not waits.wait_is_redundant(scalar, 2, "gfx942")
    # Writes to LDS must have happened before a barrier.
    shared = program("ds_write_b32 v0, v1", "s_waitcnt lgkmcnt(0)", "s_barrier", "ds_read_b32 v2, v3", "s_endpgm")
    assert not waits.wait_is_redundant(shared, 1, "gfx942") and not waits.barrier_is_redundant(shared, 2, "gfx942")
    last = program("ds_read_b32 v2, v3", "s_barrier", "s_endpgm")
    assert waits.barrier_is_redundant(last, 1, "gfx942")
    assert waits.wait_of(program("s_wait_loadcnt_dscnt 0x102")[0], "gfx1201") == {"loads": 1, "lds": 2}

"""How the Triton kernels are cut and launched on each kind of GPU: tables, best first."""

from __future__ import annotations

from typing import NamedTuple


class Config(NamedTuple):
    """Queries and keys of a tile and how many warps and pipeline stages work on it."""

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 2
    waves_per_eu: int = 0  # AMD: waves the compiler should leave registers for; 0: its own choice


Table = dict[tuple[str, int], tuple[Config, ...]]  # by operation and head dim, rounded up to a power of two

# Measured on an H200 (bf16, lengths of 1k to 16k, with a diagonal and without).
HOPPER: Table = {
    ("forward", 64): (Config(64, 64, 4, 3), Config(128, 64, 8, 3)),
    ("forward", 128): (Config(128, 128, 8, 3), Config(64, 64, 4, 3)),
    ("forward", 256): (Config(128, 64, 8, 2), Config(128, 32, 8, 3)),
    ("keys", 64): (Config(64, 64, 4, 3), Config(64, 128, 8, 3)),
    ("keys", 128): (Config(64, 128, 8, 3), Config(32, 64, 4, 3)),
    ("keys", 256): (Config(64, 64, 8, 2), Config(32, 32, 4, 2)),
    ("queries", 64): (Config(64, 64, 4, 3), Config(128, 64, 8, 3)),
    ("queries", 128): (Config(128, 64, 8, 3), Config(64, 32, 4, 3)),
    ("queries", 256): (Config(128, 32, 8, 2), Config(64, 32, 4, 2)),
}
# The same GPUs with a softcap, a bias, slopes or dropout: registers and shared memory for those are left.
MODIFIED: Table = {
    ("forward", 64): (Config(64, 64, 4, 3), Config(64, 64, 4, 2)),
    ("forward", 128): (Config(64, 64, 4, 2), Config(128, 64, 8, 2)),
    ("forward", 256): (Config(64, 32, 4, 2),),
    ("keys", 64): (Config(64, 64, 4, 2), Config(32, 64, 4, 2)),
    ("keys", 128): (Config(32, 64, 4, 2), Config(64, 64, 8, 2)),
    ("keys", 256): (Config(16, 64, 8, 1),),
    ("queries", 64): (Config(64, 64, 4, 2), Config(64, 32, 4, 2)),
    ("queries", 128): (Config(64, 32, 4, 2), Config(64, 64, 8, 2)),
    ("queries", 256): (Config(32, 32, 4, 1),),
}
# mma.sync and at least 99 KiB of shared memory: Ampere, Ada, consumer Blackwell.
AMPERE: Table = {
    ("forward", 64): (Config(128, 64, 4, 3),),
    ("forward", 128): (Config(128, 32, 4, 3), Config(128, 64, 8, 2)),
    ("forward", 256): (Config(64, 32, 4, 2),),
    ("keys", 64): (Config(64, 64, 4, 2),),
    ("keys", 128): (Config(32, 64, 4, 2),),
    ("keys", 256): (Config(16, 32, 4, 1),),
    ("queries", 64): (Config(64, 64, 4, 2),),
    ("queries", 128): (Config(64, 32, 4, 2),),
    ("queries", 256): (Config(32, 32, 4, 1),),
}
# By counts of the emulator (tests/emulator/triton/count.py, kernels/cdna/NOTES.md). 32 rows a wave, so that products
# are of 32 x 32; one stage, since the layout that the second one brings has bank conflicts (Triton 3.9, gfx942).
CDNA: Table = {
    ("forward", 64): (Config(128, 64, 4, 1, 2), Config(128, 64, 4, 1, 1)),
    ("forward", 128): (Config(128, 64, 4, 1, 1), Config(128, 32, 4, 1, 2)),
    ("forward", 256): (Config(128, 32, 4, 1, 1),),
    ("keys", 64): (Config(64, 128, 4, 1), Config(32, 128, 4, 1)),
    ("keys", 128): (Config(64, 128, 4, 1), Config(32, 128, 4, 1)),
    ("keys", 256): (Config(32, 64, 4, 1),),
    ("queries", 64): (Config(128, 64, 4, 1), Config(128, 32, 4, 1)),
    ("queries", 128): (Config(128, 64, 4, 1), Config(128, 32, 4, 1)),
    ("queries", 256): (Config(128, 32, 4, 1),),
}
# Counts again. dk and dv with head dims above 64 do not fit the registers in any shape.
RDNA: Table = {
    ("forward", 64): (Config(128, 64, 8, 1), Config(64, 64, 4, 1)),
    ("forward", 128): (Config(128, 32, 8, 1), Config(64, 32, 4, 1)),
    ("forward", 256): (Config(128, 32, 8, 1),),
    ("keys", 64): (Config(32, 64, 8, 1),),
    ("keys", 128): (Config(32, 64, 8, 1), Config(16, 128, 8, 1)),
    ("keys", 256): (Config(16, 64, 8, 1),),
    ("queries", 64): (Config(128, 32, 8, 1), Config(64, 32, 4, 1)),
    ("queries", 128): (Config(64, 32, 8, 1), Config(128, 16, 8, 1)),
    ("queries", 256): (Config(64, 16, 8, 1),),
}
# True fp32: the products are not the matrix unit's, and every one of them is an instruction.
WIDE: Table = {
    (operation, dim): (Config(32, 32, 4, 1) if dim <= 128 else Config(16, 16, 4, 1),)
    for operation in ("forward", "keys", "queries")
    for dim in (64, 128, 256)
}
TABLES = {"hopper": HOPPER, "ampere": AMPERE, "cdna": CDNA, "rdna": RDNA}
# Takes the least of everything: for GPUs that have no room for the others.
SMALLEST = Config(16, 16, 4, 1)


def configs(family: str, operation: str, dim: int, element_size: int, modified: bool) -> tuple[Config, ...]:
    """What to try, best first. operation: "forward", "keys" (dk and dv) or "queries" (dq); dim: the larger one."""
    table = TABLES[family]
    if modified and family == "hopper":
        table = MODIFIED
    if element_size > 2:
        table = WIDE
    return (*table[operation, 64 if dim <= 64 else 128 if dim <= 128 else 256], SMALLEST)

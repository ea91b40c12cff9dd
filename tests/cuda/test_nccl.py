"""flashwave.distributed with NCCL: what tests/python/test_distributed.py asks of gloo, on the GPU that is there.

One process to a GPU is what NCCL allows; two on one GPU are tried, and what NCCL says of them is the reason to skip.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import distributed_cases
from test_distributed import run

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_nccl_available(), reason="torch has no NCCL")

_ran: dict[int, dict] = {}


def _said(world: int, tmp_path_factory) -> dict:
    if world not in _ran:
        folder = tmp_path_factory.mktemp(f"nccl{world}")
        _ran[world] = run(world, distributed_cases.main, folder, "nccl", "cuda")
    return _ran[world]


@pytest.mark.parametrize("name", distributed_cases.CASES)
def test_one_process(name, tmp_path_factory):
    said = _said(1, tmp_path_factory)
    assert (name, 0) in said, "the process did not come so far"
    assert said[name, 0] is None, said[name, 0]


@pytest.mark.parametrize("name", distributed_cases.CASES)
def test_two_processes(name, tmp_path_factory):
    said = _said(2, tmp_path_factory)
    errors = [error for error in said.values() if error]
    if torch.cuda.device_count() == 1 and any("Duplicate GPU" in error for error in errors):
        pytest.skip("NCCL: duplicate GPU detected, a GPU of its own for each process")
    for rank in range(2):
        assert (name, rank) in said, f"process {rank} did not come so far"
        assert said[name, rank] is None, f"process {rank}:\n{said[name, rank]}"

"""flashwave.distributed on 1, 2, 3 and 4 processes with gloo, against a single process; and its mistakes."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist

import distributed_cases
import flashwave

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo")

_ran: dict[int, dict] = {}


def run(world: int, function, folder, *more) -> dict:
    """What each process says of each case: {(name, rank): None or an error}."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distributed_cases"])  # one import of torch for all of them
    results = context.SimpleQueue()
    file = os.path.join(folder, "rendezvous")
    before = dict(os.environ)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = "1"
    arguments = (world, file, results, *more)
    processes = [context.Process(target=function, args=(rank, *arguments)) for rank in range(world)]
    try:
        for process in processes:
            process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    said: dict = {}
    while any(process.is_alive() for process in processes) or not results.empty():
        if results.empty():
            processes[0].join(0.05)
            continue
        name, rank, error = results.get()
        said[name, rank] = error
    for process in processes:
        process.join()
    return said


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def world(request, tmp_path_factory):
    size = request.param
    if size not in _ran:
        _ran[size] = run(size, distributed_cases.main, tmp_path_factory.mktemp(f"world{size}"))
    return size


@pytest.mark.parametrize("name", distributed_cases.CASES)
def test_case(world, name):
    for rank in range(world):
        assert (name, rank) in _ran[world], f"process {rank} did not come so far"
        error = _ran[world][name, rank]
        assert error is None, f"process {rank} of {world}:\n{error}"


@pytest.mark.parametrize("size", [2, 3])
def test_a_process_that_fails_is_noticed_by_all(size, tmp_path):
    said = run(size, distributed_cases.main_of_failures, tmp_path)
    assert len(said) == size, said
    assert all(error is None for error in said.values()), said


def test_without_torch_distributed_there_is_one_process():
    q, k, v = torch.randn(3, 2, 10, 4, 8)
    expected = flashwave.flash_attn_func(q, k, v, causal=True)
    assert torch.allclose(flashwave.distributed.ring_attention(q, k, v, causal=True), expected, atol=1e-6)
    assert flashwave.distributed.shard(q).equal(q) and flashwave.distributed.unshard(q) is q

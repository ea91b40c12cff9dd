"""flashwave.distributed on 1, 2, 3 and 4 processes with gloo, against a single process; and its mistakes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from types import SimpleNamespace

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


@pytest.mark.parametrize("size", [2, 3, 4])
def test_parts_of_a_zigzag_shard_are_as_much_work_for_every_process(size, monkeypatch):
    """Else a causal ring waits: one end of a shard by itself is seen by twice as many queries here as there."""
    from flashwave.distributed import ring
    from flashwave.distributed.layout import spans

    monkeypatch.setattr(ring, "_LEAST_PART", 1)
    monkeypatch.setattr(ring, "_ROWS_STEP", 1)
    rows = 64
    keys = torch.empty(1, rows, 1, 8)
    work = {}
    for rank in range(size):
        shards = ring._Shards.__new__(ring._Shards)
        shards.ring, shards.steps, shards.packed = SimpleNamespace(rank=rank, size=size), size, False
        shards._axis, shards._layout, shards._rows_k = 1, "zigzag", rows
        parts = shards.parts(keys, keys)
        assert len(parts) == 2 and sum(part.size for part in parts) == 2 * keys.numel()
        own = [span.start + i for span in spans("zigzag", rank, size, rows) for i in range(span.length)]
        for number, part in enumerate(parts):
            for step in range(size):
                there = [span.start + i for span in shards.keys_at(step, part) for i in range(span.length)]
                assert len(there) == rows // 2
                pairs = sum(key <= query for query in own for key in there)
                work.setdefault((number, step), set()).add(pairs)
    assert all(len(pairs) == 1 for pairs in work.values()), work


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_calls_of_a_causal_ring_see_what_they_should_and_take_no_query_twice(size, layout):
    from flashwave.distributed import work
    from flashwave.distributed.layout import Span, spans

    each = 7
    rows = each * (2 if layout == "zigzag" else 1)
    options = work.Options(None, None, 0, 0.0, 0.0, None, False)
    shards = [spans(layout, rank, size, rows) for rank in range(size)]
    parts = [(0, each), (0, 3), (3, each)]  # of each span of a shard: all of it, its first keys, its last keys
    for own, there, (first, last) in itertools.product(shards, shards, parts):
        length = last - first
        keys = [Span(span.start + first, length, i * length) for i, span in enumerate(there)]
        seen = torch.zeros(rows, length * len(there), dtype=torch.int)
        used = torch.zeros(rows, dtype=torch.int)
        for call in work._joined(own, keys, options):
            used[call.queries] += 1
            for i, j in itertools.product(range(rows)[call.queries], range(seen.shape[1])[call.keys]):
                in_call = i - call.queries.start, j - call.keys.start
                seen[i, j] += call.position_k + in_call[1] <= call.position_q + in_call[0]
        at = [torch.cat([torch.arange(span.start, span.end) for span in which]) for which in (own, keys)]
        assert seen.equal((at[1][None, :] <= at[0][:, None]).int())
        assert used.max() <= 1

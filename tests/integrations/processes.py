"""A few processes with gloo that run a function of `programs`, and what each of them says of it."""

from __future__ import annotations

import datetime
import importlib
import multiprocessing
import os
import traceback
from typing import Any


def _main(rank: int, world: int, file: str, name: str, answers: Any) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=patience)
    try:
        getattr(importlib.import_module("programs"), name)()
        answers.put((rank, None))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        os._exit(1)  # the others may be waiting for this one
    dist.barrier()
    dist.destroy_process_group()


def run(name: str, world: int, folder: Any) -> None:
    """Raises what a process says that fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["programs"])  # torch and the others are imported once
    answers = context.SimpleQueue()
    before = dict(os.environ)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = "1"
    arguments = (world, os.path.join(folder, "rendezvous"), name, answers)
    processes = [context.Process(target=_main, args=(rank, *arguments)) for rank in range(world)]
    try:
        for process in processes:
            process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    said: dict[int, str | None] = {}
    while any(process.is_alive() for process in processes) or not answers.empty():
        if answers.empty():
            processes[0].join(0.05)
        else:
            rank, error = answers.get()
            said[rank] = error
    failed = {rank: error for rank, error in said.items() if error}
    assert not failed and len(said) == world, failed or f"only {sorted(said)} of {world} processes came to their end"

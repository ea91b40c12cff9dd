"""Calls whose workgroups finish each other's work, on a GPU that other kernels keep full: workgroups then start in ones
and twos and in any order, and none may wait for one that has not started. Each case is a process of its own, since a
kernel that hangs cannot be stopped from inside.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import torch
import sample

torch.manual_seed(0)
case = sample.SAMPLES[{name!r}]()
alone = case().clone()
torch.cuda.synchronize()
big = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
others = [torch.cuda.Stream() for _ in range(4)]
mine = torch.cuda.Stream(priority={priority})
results = []
for turn in range(50):
    for stream in others:  # matrix products that take every SM for milliseconds
        with torch.cuda.stream(stream):
            for _ in range(4):
                big @ big
    with torch.cuda.stream(mine):
        results += [case() for _ in range(8)]
torch.cuda.synchronize()
assert all(torch.equal(result, alone) for result in results), "other bits beside other kernels"
print("same bits", len(results))
"""


@pytest.mark.parametrize("priority", [0, -1])
@pytest.mark.parametrize("name", ["decode", "pages", "prefill"])
def test_beside_other_kernels(name: str, priority: int) -> None:
    here = Path(__file__).parent
    program = PROGRAM.format(paths=[str(here), str(here.parent / "python")], name=name, priority=priority)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "same bits 400" in done.stdout

"""Tests for a machine with an NVIDIA GPU: `pytest tests/cuda`. Without one they are skipped.

What is the same on every device is in tests/python, which runs on a GPU with `--device cuda`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))  # numeric, standard


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    if not torch.cuda.is_available() or torch.version.hip:
        for item in here:
            item.add_marker(pytest.mark.skip(reason="there is no NVIDIA GPU"))


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)

"""Shared fixtures. FLASHWAVE_TEST_DEVICE names the torch device all tests use; the default is the CPU."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")

# Examples take long on a slow machine and the same ones must be run every time.
settings.register_profile("flashwave", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("flashwave")


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> object:
    yield
    torch.compiler.reset()

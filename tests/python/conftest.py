"""Shared fixtures. --device, or FLASHWAVE_TEST_DEVICE, names the torch device of the tests; the default is the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Examples take long on a slow machine and the same ones must be run every time.
settings.register_profile("flashwave", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("flashwave")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", help="torch device of the tensors: cpu (default), cuda, cuda:1")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--device")
    if name:  # test modules read the variable when they are imported, after this
        os.environ["FLASHWAVE_TEST_DEVICE"] = name


def _device() -> str:
    return os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On another device than the CPU only tests with tensors on it are of interest."""
    if _device() == "cpu":
        return
    elsewhere = pytest.mark.skip(reason=f"has no tensors on {_device()}: a run on the CPU tests it")
    for item in items:  # of the session: other folders' too
        here = item.path.parent == Path(__file__).parent
        if here and "device" not in item.fixturenames and not hasattr(item.module, "DEVICE"):
            item.add_marker(elsewhere)


@pytest.fixture(scope="session")
def device() -> str:
    return _device()


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> object:
    yield
    torch.compiler.reset()


@pytest.fixture
def tensors_on_the_device(device):
    """Modules and tensors are made there unless a test says otherwise."""
    if device == "cpu":
        yield
        return
    with torch.device(device):
        yield

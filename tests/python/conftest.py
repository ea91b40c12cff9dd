"""Shared fixtures. --device, or FLASHWAVE_TEST_DEVICE, names the torch device of the tests; the default is the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import flashwave
import refusals
from flashwave import dispatch

# Examples take long on a slow machine and the same ones must be run every time.
settings.register_profile("flashwave", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("flashwave")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", help="torch device of the tensors: cpu (default), cuda, cuda:1")
    parser.addoption(
        "--backend", help="of the tests that run on each: default, native, triton, torch, with commas between"
    )


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


def _backends(config: pytest.Config) -> list[str]:
    """Those that the tests of every backend run on: what the rules choose, and each that computes on the device."""
    named = config.getoption("--backend")
    if named:
        return named.split(",")
    if _device() == "cpu":
        return ["default", "torch"]  # the default is native
    q = torch.zeros(1, 1, 1, 16, dtype=torch.float16, device=_device())
    found = ["default"]
    for name in dispatch.NAMES:
        try:
            with flashwave.backend(name):
                flashwave.flash_attn_func(q, q, q)
            found.append(name)
        except flashwave.BackendRefused as error:
            if not refusals.is_absent(error):
                raise
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _backends(metafunc.config), indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> object:
    """The test runs on each backend in turn. Calls take it or fail; Triton may say that it does not take a problem."""
    if request.param == "default":
        yield request.param
        return
    with flashwave.backend(request.param):
        yield request.param


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """A problem that the backend of the test does not take for a reason on the list is skipped, not failed."""
    outcome = yield
    error = None if outcome.excinfo is None else outcome.excinfo[1]
    if not isinstance(error, flashwave.BackendRefused) or pyfuncitem.funcargs.get("backend") != error.backend:
        return
    if refusals.may_skip(error):
        try:
            pytest.skip(str(error))
        except pytest.skip.Exception as skipped:
            outcome.force_exception(skipped)


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


@pytest.fixture
def one_thread():
    """For tests whose operations are small: threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

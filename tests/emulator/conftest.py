import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import hip  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--arch", default=",".join(hip.ARCHITECTURES), help="GPUs to emulate, with commas between them")
    parser.addoption("--opt", help="how kernels are compiled; O0,O3, and with --full O1 too")
    parser.addoption(
        "--full", action="store_true", help="also the tests marked `full`, which differ little from others"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "full: runs with --full only")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_generate_tests(metafunc):
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", metafunc.config.getoption("--arch").split(","), scope="session")
    if "opt" in metafunc.fixturenames:
        levels = metafunc.config.getoption("--opt") or ("O0,O1,O3" if metafunc.config.getoption("--full") else "O0,O3")
        metafunc.parametrize("opt", levels.split(","), scope="session")


class Gpu:
    """One architecture and one optimisation level: the kernels of a file, ready to run."""

    def __init__(self, arch, opt):
        self.arch, self.opt, self.wave = arch, opt, hip.wave_size(arch)
        self.cdna = arch.startswith("gfx9")

    def code(self, name):
        return hip.compile_kernels(HERE / "kernels" / f"{name}.hip", self.arch, self.opt)

    def run(self, name, kernel, grid, block, args, **options):
        shared = options.pop("shared", 0)
        with hip.Session(self.arch, **options) as session:
            session.run(self.code(name), kernel, grid, block, args, shared=shared)


@pytest.fixture
def gpu(arch, opt):
    return Gpu(arch, opt)

"""flashwave's Triton backend on the emulator: its own launches, with tensors of the CPU, on an emulated AMD GPU.

Nothing of the backend is replaced but the last step: where Triton would compile a kernel for the GPU of the tensors and
launch it, it is compiled for an AMD GPU and launched on the emulator.
"""

import contextlib
import ctypes
import os
import pathlib
import sys

import build
import numpy as np
import torch

import hip

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]
os.environ.setdefault("FLASHWAVE_LIBRARY", str(ROOT / "build" / "libflashwave.so"))

import triton_launches  # noqa: E402
from flashwave.backends.triton import launch as triton_launch  # noqa: E402

SOURCES = sorted(pathlib.Path(triton_launch.__file__).parent.glob("*.py"))  # a change of any compiles again
assert SOURCES


class Launches(list):
    """Names of kernels as they are launched, and the session in which they run."""

    def __init__(self, session):
        super().__init__()
        self.session = session

    def launch(self, function, grid, arguments):
        types, constants, divisible, values, options = triton_launches.specialise(function, arguments)
        arch = self.session.arch
        code, notes = build.build_function(arch, function, SOURCES, types, constants, divisible, options)
        buffers = {}
        given = [stored(value, buffers) for value in values]
        # After the kernel's own arguments come pointers to scratch memory of Triton's tools, which nothing here uses.
        kinds = [k for k in hip.argument_kinds(code, notes["name"]) if not k.startswith("hidden_")]
        assert set(kinds[len(given) :]) <= {"global_buffer"}
        given += [None] * (len(kinds) - len(given))
        threads = options["num_warps"] * build.wave_size(arch)
        self.session.run(code, notes["name"], grid, threads, given, shared=notes["shared"])
        for buffer in buffers.values():
            buffer.get_into(buffer.content)
            buffer.free()
        self.append(function.__name__)


def stored(value, buffers):
    """Numbers as they are; a tensor as an address in a copy of the memory it is part of."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    start = storage.data_ptr()
    if start not in buffers:
        memory = (ctypes.c_uint8 * storage.nbytes()).from_address(start)
        buffers[start] = hip.Buffer(np.frombuffer(memory, np.uint8))
    return ctypes.c_void_p(buffers[start].address + value.data_ptr() - start)


@contextlib.contextmanager
def on_emulator(arch, **options):
    """Inside, the backend's launches run on the emulator; gives the names of the kernels as they are launched."""
    with hip.Session(arch, **options) as session:
        launches = Launches(session)
        with triton_launches.taken_over(launches.launch, "cdna" if arch.startswith("gfx9") else "rdna"):
            yield launches

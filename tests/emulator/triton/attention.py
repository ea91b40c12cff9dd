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

from flashwave.backends.triton import launch as triton_launch  # noqa: E402

SOURCES = sorted(pathlib.Path(triton_launch.__file__).parent.glob("*.py"))  # a change of any compiles again
assert SOURCES
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32",
            torch.int64: "*i64"}  # fmt: skip
KERNELS = ("attention_forward", "row_terms", "attention_backward_keys", "attention_backward_queries")
OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "enable_fp_fusion")


class Kernel:
    """Stands for a function of triton.jit: kernel[grid](**arguments)."""

    def __init__(self, function, session, launches):
        self.function, self.session, self.launches = function, session, launches

    def __getitem__(self, grid):
        return lambda **arguments: self.launch(grid, arguments)

    def launch(self, grid, arguments):
        options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        types, constants, divisible, values = self.specialise(arguments)
        arch = self.session.arch
        code, notes = build.build_function(arch, self.function, SOURCES, types, constants, divisible, options)
        buffers = {}
        given = [self.stored(value, buffers) for value in values]
        # After the kernel's own arguments come pointers to scratch memory of Triton's tools, which nothing here uses.
        kinds = [k for k in hip.argument_kinds(code, notes["name"]) if not k.startswith("hidden_")]
        assert set(kinds[len(given) :]) <= {"global_buffer"}
        given += [None] * (len(kinds) - len(given))
        threads = options["num_warps"] * build.wave_size(arch)
        self.session.run(code, notes["name"], grid, threads, given, shared=notes["shared"])
        for buffer in buffers.values():
            buffer.get_into(buffer.content)
            buffer.free()
        self.launches.append(self.function.__name__)

    def specialise(self, arguments):
        """As Triton's launcher does: None and 1 are part of the code, and so is what is a multiple of 16."""
        types, constants, divisible, values = {}, {}, [], []
        for parameter in self.function.params:
            name, value = parameter.name, arguments.pop(parameter.name)
            special = not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (special and isinstance(value, int) and value == 1):
                types[name], constants[name] = "constexpr", value
                continue
            if isinstance(value, torch.Tensor):
                types[name], aligned = POINTERS[value.dtype], value.data_ptr() % 16 == 0
            elif isinstance(value, float):
                types[name], aligned = "fp32", False
            else:
                types[name], aligned = "i32", value % 16 == 0
            if special and aligned:
                divisible.append(name)
            values.append(value)
        assert not arguments, f"{self.function.__name__} has no arguments {sorted(arguments)}"
        return types, constants, divisible, values

    def stored(self, value, buffers):
        """Numbers as they are; a tensor as an address in a copy of the memory it is part of."""
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        start = storage.data_ptr()
        if start not in buffers:
            memory = (ctypes.c_uint8 * storage.nbytes()).from_address(start)
            buffers[start] = hip.Buffer(np.frombuffer(memory, np.uint8))
        return ctypes.c_void_p(buffers[start].address + value.data_ptr() - start)


class Launches(list):
    """Names of kernels, and the session in which they ran."""

    session: hip.Session


@contextlib.contextmanager
def on_emulator(arch, **options):
    """Inside, the backend's launches run on the emulator; gives the names of the kernels as they are launched."""
    launches, before = Launches(), {name: getattr(triton_launch, name) for name in (*KERNELS, "family")}
    with hip.Session(arch, **options) as session:
        launches.session = session
        try:
            for name in KERNELS:
                setattr(triton_launch, name, Kernel(before[name], session, launches))
            triton_launch.family = lambda device: "cdna" if arch.startswith("gfx9") else "rdna"
            yield launches
        finally:
            for name, value in before.items():
                setattr(triton_launch, name, value)

"""The launches of flashwave's Triton backend, taken over: its kernels as Triton's launcher would compile them, for GPUs
that need not be here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from flashwave.backends.triton import launch as triton_launch

KERNELS = ("attention_forward", "row_terms", "attention_backward_keys", "attention_backward_queries")
_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "enable_fp_fusion")


class Specialised(NamedTuple):
    """What Triton's launcher makes of the arguments of a launch."""

    types: dict[str, str]  # of all arguments, "constexpr" among them
    constants: dict[str, Any]
    divisible: list[str]  # arguments that are known to be multiples of 16
    values: list[Any]  # what is passed at run time
    options: dict[str, Any]  # of the compiler


def specialise(function: Any, arguments: dict[str, Any]) -> Specialised:
    """As Triton's launcher does: None and 1 are part of the code, and so is what is a multiple of 16."""
    arguments = dict(arguments)
    options = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible: list[str] = []
    values: list[Any] = []
    for parameter in function.params:
        name, value = parameter.name, arguments.pop(parameter.name)
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and isinstance(value, int) and value == 1):
            types[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            types[name], aligned = _POINTERS[value.dtype], value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            types[name], aligned = "fp32", False
        else:
            types[name], aligned = "i32", value % 16 == 0
        if special and aligned:
            divisible.append(name)
        values.append(value)
    assert not arguments, f"{function.__name__} has no arguments {sorted(arguments)}"
    return Specialised(types, constants, divisible, values, options)


class StandIn:
    """Stands for a function of triton.jit: kernel[grid](**arguments) calls `launch`."""

    def __init__(self, function: Any, launch: Callable[[Any, Any, dict[str, Any]], None]) -> None:
        self._function, self._launch = function, launch

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda **arguments: self._launch(self._function, grid, arguments)


@contextlib.contextmanager
def taken_over(launch: Callable[[Any, Any, dict[str, Any]], None], family: str) -> Iterator[None]:
    """Inside, the backend calls `launch(function, grid, arguments)` where it would launch a kernel, and cuts its work
    as on GPUs of the family.
    """
    before = {name: getattr(triton_launch, name) for name in (*KERNELS, "family")}
    try:
        for name in KERNELS:
            setattr(triton_launch, name, StandIn(before[name], launch))
        triton_launch.family = lambda device: family
        yield
    finally:
        for name, value in before.items():
            setattr(triton_launch, name, value)

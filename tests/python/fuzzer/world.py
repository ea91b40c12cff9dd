"""What the calls of one sequence share: sizes, tensors in many layouts, scalars that are tensors, global settings."""

from __future__ import annotations

import contextlib
import os
import random
from typing import NamedTuple

import torch
from torch import Tensor

import flashwave

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LAYOUTS = ("plain", "heads first", "sliced rows", "sliced dim", "offset", "strided dim", "packed", "expanded")
VARIABLES = (
    "FLASHWAVE_BACKEND",
    "FLASHWAVE_FORCE_KERNEL",
    "FLASH_ATTENTION_INTERNAL_DETERMINISTIC",
    "FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE",
)


class Finding(AssertionError):
    """Something is wrong. `kind` is the same for all findings of one fault, as far as one can tell from outside."""

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(f"{kind}: {details}")
        self.kind = kind


class Sizes(NamedTuple):
    batch: int
    queries: int
    keys: int
    heads: int
    heads_k: int
    dim: int
    dim_v: int


class World:
    """The state of a sequence.

    `rng` decides what a step is, `pick` which tensors it takes and what numbers are in them: a step that repeats
    another one has its `rng` and a `pick` of its own.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = self.pick = rng
        self.last: tuple[str, str] | None = None  # maker and seed of the last call
        self.simple = rng.random() < 0.4  # what most programs do, where shortcuts are taken: one shape, few options
        self.sizes = self._draw_sizes()
        self.dtype = rng.choices(DTYPES, (5, 2, 1, 1))[0]
        self.pool: dict[tuple, list[Tensor]] = {}
        self.scalars = [torch.tensor(rng.uniform(0.05, 1.5), dtype=torch.float32) for _ in range(2)]
        self.buffers: dict[str, Tensor] = {}  # that are refilled in place, by what they are for
        self.may_refuse: tuple[type, ...] = ()
        self._undo = contextlib.ExitStack()

    def _draw_sizes(self) -> Sizes:
        rng = self.rng
        if self.simple:
            batch, rows, heads, dim = (
                rng.choice((1, 2)),
                rng.choice((1, 4, 16)),
                rng.choice((1, 2)),
                rng.choice((8, 32)),
            )
            return Sizes(batch, rows, rows, heads, heads, dim, dim)
        batch, queries = rng.choice((1, 1, 2, 2, 3, 0)), rng.choice((1, 1, 3, 4, 5, 6, 8, 17, 0))
        keys = rng.choice((queries, queries, queries, 1, 7, 24, 0))
        heads = rng.choice((1, 2, 2, 4))
        heads_k = rng.choice((heads, heads, heads, 1))
        dim = rng.choice((1, 4, 8, 8, 16, 16, 24, 32, 64))
        return Sizes(batch, queries, keys, heads, heads_k, dim, rng.choice((dim, dim, dim, 8)))

    # ------------------------------------------------------------------------------------------------------- tensors

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.pick.getrandbits(62))
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(dtype or self.dtype)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, layouts: tuple[str, ...] = LAYOUTS) -> Tensor:
        """One that earlier calls may have seen, or a new one."""
        dtype = dtype or self.dtype
        known = self.pool.setdefault((shape, dtype), [])
        fitting = [x for x in known if layouts is LAYOUTS or (x.is_contiguous() and not x.is_neg())]
        if fitting and self.pick.random() < 0.7:
            return self.pick.choice(fitting)
        layout = "plain" if self.pick.random() < (0.9 if self.simple else 0.45) else self.pick.choice(layouts)
        if layouts is LAYOUTS and self.pick.random() < 0.02:
            layout = "negated"
        made = self._make(shape, dtype, layout)
        if len(known) == 4:
            known.pop(self.pick.randrange(4))  # its memory is used again, for other tensors
        known.append(made)
        return made

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
        rng, last = self.pick, shape[-1]
        with torch.inference_mode(rng.random() < 0.06):
            if layout == "heads first" and len(shape) == 4:
                return self.normal(shape[0], shape[2], shape[1], last, dtype=dtype).transpose(1, 2)
            if layout == "sliced rows" and len(shape) >= 3:
                wide = self.normal(*shape[:-3], shape[-3] + 3, *shape[-2:], dtype=dtype)
                return wide.narrow(-3, rng.randrange(4), shape[-3])
            if layout == "sliced dim":
                return self.normal(*shape[:-1], last + 5, dtype=dtype).narrow(-1, rng.randrange(6), last)
            if layout == "offset":
                count = torch.Size(shape).numel()
                start = rng.choice((1, 2, 3, 4, 7, 8))
                return self.normal(count + start, dtype=dtype)[start:].view(shape)
            if layout == "strided dim":
                return self.normal(*shape[:-1], 2 * last, dtype=dtype)[..., ::2]
            if layout == "packed" and len(shape) >= 3:
                return self.normal(*shape[:-2], 3, *shape[-2:], dtype=dtype).select(-3, rng.randrange(3))
            if layout == "expanded" and shape[0] > 0:
                axis = rng.randrange(len(shape) - 1) if len(shape) > 1 else 0
                small = self.normal(*(1 if n == axis else size for n, size in enumerate(shape)), dtype=dtype)
                return small.expand(shape)
            if layout == "negated":
                return torch._neg_view(self.normal(*shape, dtype=dtype))
            return self.normal(*shape, dtype=dtype)

    def change(self) -> str:
        """New numbers in place, in a tensor or a scalar that calls have seen."""
        rng = self.rng
        if rng.random() < 0.35:
            scalar = rng.choice(self.scalars)
            scalar.fill_(rng.uniform(0.05, 1.5))
            return "a scalar tensor"
        known = [x for tensors in self.pool.values() for x in tensors if 0 not in _moving_strides(x)]
        if not known:
            return "nothing"
        x = rng.choice(known)
        with torch.inference_mode(x.is_inference()), torch.no_grad():
            x.copy_(self.normal(*x.shape, dtype=x.dtype))
        return f"a tensor {tuple(x.shape)}"

    def buffer(self, name: str, values: Tensor, inference: bool = False) -> Tensor:
        """`values`, often in the tensor that held the last ones: a static buffer, perhaps made in inference mode."""
        kept = self.buffers.get(name)
        if kept is not None and kept.shape == values.shape and kept.dtype == values.dtype and self.pick.random() < 0.8:
            with torch.inference_mode(kept.is_inference()):
                kept.copy_(values)
            return kept
        with torch.inference_mode(inference and self.pick.random() < 0.5):
            self.buffers[name] = values.clone()
        return self.buffers[name]

    # ------------------------------------------------------------------------------------------------ global settings

    def set_something(self) -> str:
        """An environment variable, the default dtype, the number of threads: until the end of the sequence."""
        rng = self.rng
        what = rng.choice((0, 0, 1, 2, 3, 3))
        if what == 0:
            dtype = rng.choice((torch.float64, torch.bfloat16, torch.float32))
            self._undo.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(dtype)
            return f"default dtype {dtype}"
        if what == 1:
            count = rng.choice((1, 2, 3))
            self._undo.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(count)
            return f"{count} threads"
        if what == 2:
            on = rng.random() < 0.5
            self._undo.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(on)
            return f"deterministic algorithms {on}"
        name = rng.choice(VARIABLES)
        value = {
            "FLASHWAVE_BACKEND": rng.choice(("", "native", "torch")),
            "FLASHWAVE_FORCE_KERNEL": rng.choice(("", "reference_fwd")),
        }.get(name, rng.choice(("0", "1")))
        self._undo.callback(_set_variable, name, os.environ.get(name))
        _set_variable(name, value or None)
        forced = os.environ.get("FLASHWAVE_BACKEND") or os.environ.get("FLASHWAVE_FORCE_KERNEL")
        # float64 by the library's kernels, a kernel's name by torch operations: refused, and counted by the engine
        self.may_refuse = (flashwave.Unsupported,) if forced else ()
        return f"{name}={value}"

    def close(self) -> None:
        self._undo.close()


def _set_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _moving_strides(x: Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride()) if size > 1]

"""What torch.utils.flop_counter counts for the operators: both products of the forward, five of the backward.

As torch does for its own attention, masks are not looked at, and packed sequences are taken to have one length.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

from .operators import ops
from .problem import FORWARD_FIELDS


def _pairs(q: Any, k: Any, v: Any, batch: int | None, queries: int, keys: int) -> tuple[int, int, int]:
    """(query, key) pairs of all heads; the dimensions of q and k, and of v. Shapes alone are given."""
    if batch is None:
        batch = q[0]
    return batch * q[-2] * queries * keys, q[-1], v[-1]


def _forward(pairs: int, dim: int, dim_v: int) -> int:
    return 2 * pairs * (dim + dim_v)


def _backward(pairs: int, dim: int, dim_v: int) -> int:
    return 2 * pairs * (3 * dim + 2 * dim_v)


def _problem(fields: tuple) -> tuple[int, int, int]:
    named = dict(zip(FORWARD_FIELDS, fields))
    cu = named["cu_seqlens_q"]
    lengths = named["max_seqlen_q"], named["max_seqlen_k"]
    return _pairs(named["q"], named["k"], named["v"], None if cu is None else cu[0] - 1, *lengths)


def _cached(q: Any, k: Any, v: Any, table: Any) -> int:
    return _forward(*_pairs(q, k, v, None, q[1], k[1] if table is None else k[1] * table[-1]))


_COUNTER = "torch.utils.flop_counter"
FORMULAS = {
    "_dense": lambda q, k, v, *a, **_: _forward(*_pairs(q, k, v, None, q[1], k[1])),
    **dict.fromkeys(
        ("_plain_lse", "_dense_lse"), lambda q, k, v, *a, **_: _forward(*_pairs(q, k, v, None, q[1], k[1]))
    ),
    **dict.fromkeys(
        ("_plain_backward", "_dense_backward"),
        lambda dout, out, lse, q, k, v, *a, **_: _backward(*_pairs(q, k, v, None, q[1], k[1])),
    ),
    "_varlen": lambda q, k, v, cu, _cu, sq, sk, *a, **_: _forward(*_pairs(q, k, v, cu[0] - 1, sq, sk)),
    "_cached": lambda q, k, v, used, pad, rows, table, *a, **_: _cached(q, k, v, table),
    "_append_step": lambda q, k, v, *a, **_: _cached(q, k, v, None),
    "_cached_append": lambda q, k, v, *a, **_: _cached(q, k, v, a[7]),
    "_forward": lambda *a, **_: _forward(*_problem(a)),
    "_forward_given": lambda out, *a, **_: _forward(*_problem(a)),
    "_append": lambda *a, **_: _forward(*_problem(a)),
    "_backward": lambda dout, dlse, out, lse, needs, *a, **_: _backward(*_problem(a)),
}


def register() -> None:
    counter = sys.modules[_COUNTER]
    for name, formula in FORMULAS.items():
        operator = getattr(ops, name)
        counter.register_flop_formula(operator)(formula)
        registry = counter.flop_registry
        registry.setdefault(operator, registry.get(operator.default))  # torch 2.4 takes it for a list of overloads


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Registers when torch.utils.flop_counter has been imported: that takes ten times as long as this package."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        register()


def register_when_needed() -> None:
    if _COUNTER in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterImport())

"""The torch operators `flashwave::*`: their arguments, what they give for fake tensors, and who computes them.

Those with an underscore compute and know no gradients; `autograd` calls them. On tensors of CPUs and GPUs they are
`libflashwave_torch.so` (python/binding), which needs torch 2.9; elsewhere, and on older torch, they are the functions
below. Both fill the library's struct from the tensors of the call and nothing else. Where the library has no kernel, or
only a slow one, or where a backend is asked for by name, the binding calls `_forward_elsewhere` and
`_backward_elsewhere`, which ask `dispatch`.
"""

from __future__ import annotations

import ctypes
import re
import threading
from typing import Any, NoReturn

import torch

from . import _library as fw
from . import dispatch, settings, shapes
from .backends.native import threads
from .backends.native.structs import lse_shape, out_shape, probs_shape
from .errors import BY_STATUS, FlashwaveError
from .problem import FORWARD_FIELDS, NAMES_OF_GRADIENTS, Problem

Tensor = torch.Tensor

_MASK = "float? softmax_scale, bool causal, SymInt window_left, SymInt window_right, float softcap"
# packed: `packed_mask` of the others, and deterministic.
_PLAIN_MASK = "float? softmax_scale, int packed"
_PACKED_MASK = f"{_PLAIN_MASK}, float softcap, Tensor? rng_state, float dropout_p"
_CACHE = "Tensor? seqused_k, Tensor? leftpad_k, Tensor? cache_batch_idx, Tensor? block_table"
_NEW_KEYS = "Tensor? k_new, Tensor? v_new, Tensor? rotary_cos, Tensor? rotary_sin"
_PROBLEM = (
    f"Tensor q, Tensor{{}} k, Tensor{{}} v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, {_CACHE}, "
    "Tensor? alibi_slopes, Tensor? bias, Tensor? sinks, Tensor? rng_state, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    f"{_MASK}, float dropout_p, int num_splits, bool deterministic"
)
READ, _WRITTEN = _PROBLEM.format("", ""), _PROBLEM.format("(a!)", "(b!)")
APPENDED = f"{_WRITTEN}, {_NEW_KEYS}, bool rotary_interleaved"
_SIX = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"  # gradients, without elements where they are not needed

SCHEMAS = {
    # Those a call without options takes: each argument costs a tenth of a microsecond.
    "_dense": f"(Tensor q, Tensor k, Tensor v, {_MASK}) -> Tensor",
    **{
        f"{name}_{what}": f"({results}Tensor q, Tensor k, Tensor v, {mask}) -> ({given})"
        for name, mask in (("_plain", _PLAIN_MASK), ("_dense", _PACKED_MASK))
        for what, results, given in (
            ("lse", "", "Tensor, Tensor"),
            ("backward", "Tensor dout, Tensor out, Tensor lse, ", "Tensor, Tensor, Tensor"),
        )
    },
    "_varlen": "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, "
    f"SymInt max_seqlen_k, {_MASK}) -> Tensor",
    "_cached": f"(Tensor q, Tensor k, Tensor v, {_CACHE}, {_MASK}, int num_splits) -> Tensor",
    "_append_step": "(Tensor q, Tensor(a!) k, Tensor(b!) v, Tensor k_new, Tensor v_new, Tensor seqused_k, "
    "float? softmax_scale, bool causal, SymInt window_left, SymInt window_right) -> Tensor",
    "_cached_append": f"(Tensor q, Tensor(a!) k, Tensor(b!) v, {_NEW_KEYS}, {_CACHE}, {_MASK}, int num_splits, "
    "bool rotary_interleaved) -> Tensor",
    # Those that take everything. An lse or a matrix that is not wanted is a tensor without elements.
    "_forward": f"({READ}, bool return_lse, bool return_probs) -> (Tensor, Tensor, Tensor)",
    "_forward_given": f"(Tensor(a!) out, {READ}, bool return_lse, bool return_probs) -> (Tensor, Tensor)",
    "_append": f"({APPENDED}, bool return_lse) -> (Tensor, Tensor)",
    "_backward": f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, int needs, {READ}) -> {_SIX}",
    # What the binding calls.
    "_forward_elsewhere": f"({APPENDED}, Tensor(c!)? out, bool return_lse, bool return_probs, bool refused) "
    "-> (Tensor, Tensor, Tensor)",
    "_backward_elsewhere": f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, int needs, {READ}, bool refused) "
    f"-> {_SIX}",
}
_FORWARD, _ALL = len(FORWARD_FIELDS), len(Problem._fields)


# ------------------------------------------------------------------------------------- arguments of narrow operators


WIDEST_PACKED = (1 << 30) - 2  # of a window's sides


def packed_mask(causal: bool, left: int, right: int, deterministic: bool) -> int:
    """Four arguments as one. Sides of the window are at most WIDEST_PACKED."""
    return causal | deterministic << 1 | left + 1 << 2 | right + 1 << 32


def dense_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: tuple,
    deterministic: bool = False,
    rng_state: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Problem:
    lengths = [tensor.shape[1] if tensor.dim() > 1 else 0 for tensor in (q, k)]
    return Problem(q, k, v, *[None] * 9, rng_state, *lengths, *mask, dropout_p, deterministic=deterministic)


def packed_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    packed: int,
    softcap: float = 0.0,
    rng_state: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Problem:
    left, right = (packed >> 2 & (1 << 30) - 1) - 1, (packed >> 32) - 1
    mask = scale, bool(packed & 1), left, right, softcap
    return dense_problem(q, k, v, mask, bool(packed & 2), rng_state=rng_state, dropout_p=dropout_p)


def _cached_problem(q: Tensor, k: Tensor, v: Tensor, cache: tuple, mask: tuple, num_splits: int) -> Problem:
    table, keys = cache[3], k.shape[1] if k.dim() > 1 else 0
    room = keys if table is None else keys * table.shape[-1]
    queries = q.shape[1] if q.dim() > 1 else 0
    return Problem(q, k, v, None, None, *cache, None, None, None, None, queries, room, *mask, num_splits=num_splits)


def _append_problem(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Problem:
    new_keys, cache, mask, (num_splits, interleaved) = rest[:4], rest[4:8], rest[8:13], rest[13:]
    problem = _cached_problem(q, k, v, cache, mask, num_splits)
    names = ("k_new", "v_new", "rotary_cos", "rotary_sin")
    return problem._replace(**dict(zip(names, new_keys)), rotary_interleaved=interleaved)


def _step_problem(q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor, used: Tensor, *rest: Any) -> Problem:
    problem = _cached_problem(q, k, v, (used, None, None, None), (*rest, 0.0), 0)
    return problem._replace(k_new=k_new, v_new=v_new)


def _varlen_problem(q: Tensor, k: Tensor, v: Tensor, cu_q: Any, cu_k: Any, max_q: int, max_k: int, mask: tuple) -> Any:
    return Problem(q, k, v, cu_q, cu_k, *[None] * 8, max_q, max_k, *mask)


def needs_of(bits: int) -> tuple[bool, ...]:
    """Which gradients an operator is asked for: bit i for the i-th of NAMES_OF_GRADIENTS."""
    return tuple([bool(bits >> i & 1) for i in range(len(NAMES_OF_GRADIENTS))])


def bits_of(needs: tuple[bool, ...]) -> int:
    return sum(needed << i for i, needed in enumerate(needs))


# ---------------------------------------------------------------------------------------------- computed by Python


def absent(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return like.new_empty((0,), dtype=dtype)


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _forward(problem: Problem, lse: bool, probs: bool, out: Tensor | None = None, refused: bool = False) -> tuple:
    result, found, matrix = dispatch.forward(problem, out, lse, probs, refused)
    return (
        result,
        found if lse else absent(problem.q, _lse_dtype(problem.q)),
        matrix if probs else absent(problem.q, torch.float32),
    )


def _backward(dout: Any, dlse: Any, out: Any, lse: Any, needs: int, problem: Problem, refused: bool = False) -> tuple:
    gradients = dispatch.backward(problem, dout, dlse, out, lse, needs_of(needs), refused)
    return tuple([absent(problem.q) if gradient is None else gradient for gradient in gradients])


def _dense_backward(dout: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple:
    return _backward(dout, None, out, lse, 7, packed_problem(q, k, v, *rest))[:3]


COMPUTED = {
    "_dense": lambda q, k, v, *mask: _forward(dense_problem(q, k, v, mask), False, False)[0],
    **dict.fromkeys(("_plain_lse", "_dense_lse"), lambda *a: _forward(packed_problem(*a), True, False)[:2]),
    **dict.fromkeys(("_plain_backward", "_dense_backward"), _dense_backward),
    "_varlen": lambda *a: _forward(_varlen_problem(*a[:7], a[7:]), False, False)[0],
    "_cached": lambda q, k, v, *a: _forward(_cached_problem(q, k, v, a[:4], a[4:9], a[9]), False, False)[0],
    "_append_step": lambda *a: _forward(_step_problem(*a), False, False)[0],
    "_cached_append": lambda *a: _forward(_append_problem(*a), False, False)[0],
    "_forward": lambda *a: _forward(Problem(*a[:_FORWARD]), *a[_FORWARD:]),
    "_forward_given": lambda out, *a: _forward(Problem(*a[:_FORWARD]), *a[_FORWARD:], out)[1:],
    "_append": lambda *a: _forward(Problem(*a[:_ALL]), a[_ALL], False)[:2],
    "_backward": lambda dout, dlse, out, lse, needs, *a: _backward(dout, dlse, out, lse, needs, Problem(*a)),
}


# --------------------------------------------------------------------------------------------- what fake tensors get


def _fake_forward(problem: Problem, lse: bool, probs: bool) -> tuple:
    shapes.check(problem)
    q = problem.q
    return (
        q.new_empty(out_shape(problem)),
        q.new_empty(lse_shape(problem) if lse else (0,), dtype=_lse_dtype(q)),
        q.new_empty(probs_shape(problem) if probs else (0,), dtype=torch.float32),
    )


def _fake_backward(needs: int, problem: Problem) -> tuple:
    results = []
    for name, needed in zip(NAMES_OF_GRADIENTS, needs_of(needs)):
        tensor = getattr(problem, name)
        results.append(tensor.new_empty(tensor.shape) if needed else absent(problem.q))
    return tuple(results)


FAKES = {
    "_dense": lambda q, k, v, *mask: _fake_forward(dense_problem(q, k, v, mask), False, False)[0],
    **dict.fromkeys(("_plain_lse", "_dense_lse"), lambda *a: _fake_forward(packed_problem(*a), True, False)[:2]),
    **dict.fromkeys(
        ("_plain_backward", "_dense_backward"),
        lambda dout, out, lse, q, k, v, *rest: tuple([t.new_empty(t.shape) for t in (q, k, v)]),
    ),
    "_varlen": lambda *a: _fake_forward(_varlen_problem(*a[:7], a[7:]), False, False)[0],
    "_cached": lambda q, k, v, *a: _fake_forward(_cached_problem(q, k, v, a[:4], a[4:9], a[9]), False, False)[0],
    "_append_step": lambda *a: _fake_forward(_step_problem(*a), False, False)[0],
    "_cached_append": lambda *a: _fake_forward(_append_problem(*a), False, False)[0],
    "_forward": lambda *a: _fake_forward(Problem(*a[:_FORWARD]), *a[_FORWARD:]),
    "_forward_given": lambda out, *a: _fake_forward(Problem(*a[:_FORWARD]), *a[_FORWARD:])[1:],
    "_append": lambda *a: _fake_forward(Problem(*a[:_ALL]), a[_ALL], False)[:2],
    "_backward": lambda dout, dlse, out, lse, needs, *a: _fake_backward(needs, Problem(*a)),
}


# ----------------------------------------------------------------------------------------- failures inside an operator

_thread = threading.local()
_FAILED = re.compile(
    r"flashwave\[(\d)\]: (.*?)(?:\n(?:Exception raised|C\+\+ CapturedTraceback|frame #)|\Z)", re.DOTALL
)


def as_text(error: BaseException) -> Tensor:
    """A failure as a result that the binding knows: torch's C ABI would print an exception, and lose it."""
    _thread.error = error
    status = next((status for status, kind in BY_STATUS.items() if isinstance(error, kind)), 7)
    return torch.frombuffer(bytearray(f"{status}{error}".encode()), dtype=torch.uint8)


def raise_for(error: RuntimeError) -> NoReturn:
    """Raises, for a failure inside an operator, what Python raised there, or what the library said."""
    found = _FAILED.match(str(error))
    if found is None:
        raise error
    raised, _thread.error = getattr(_thread, "error", None), None
    if raised is None or str(raised) != found[2]:
        raised = BY_STATUS.get(int(found[1]), FlashwaveError)(found[2])
    raise raised from raised.__cause__


def _forward_elsewhere(*arguments: Any) -> tuple:
    problem, (out, lse, probs, refused) = Problem(*arguments[:_ALL]), arguments[_ALL:]
    try:
        result, found, matrix = _forward(problem, lse, probs, out, refused)
    except BaseException as error:
        return as_text(error), absent(problem.q), absent(problem.q)
    return result if out is None else absent(problem.q), found, matrix


def _backward_elsewhere(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: int, *rest: Any) -> tuple:
    problem, refused = Problem(*rest[:_FORWARD]), rest[_FORWARD]
    try:
        return _backward(dout, dlse, out, lse, needs, problem, refused)
    except BaseException as error:
        return (as_text(error), *[absent(problem.q) for _ in range(5)])


# ---------------------------------------------------------------------------------------------------------- registering

library = torch.library.Library("flashwave", "FRAGMENT")
for _name, _schema in SCHEMAS.items():
    library.define(_name + _schema)
for _name, _kernel in COMPUTED.items():
    library.impl(_name, _kernel, "CompositeExplicitAutograd")
    library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # torch's own looks at every argument, in vain
    torch.library.register_fake(f"flashwave::{_name}", FAKES[_name], lib=library)
library.impl("_forward_elsewhere", _forward_elsewhere, "CompositeExplicitAutograd")
library.impl("_backward_elsewhere", _backward_elsewhere, "CompositeExplicitAutograd")

OLDEST_WITH_BINDING = (2, 9)  # from which on torch promises to keep its C ABI


_TORCH = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())


def _register_binding() -> str | None:
    """Why the operators are Python's, None where they are the binding's."""
    if fw.lib is None:
        return "there is no libflashwave.so"
    if not settings.binding():
        return "FLASHWAVE_BINDING=0"
    if _TORCH < OLDEST_WITH_BINDING:
        return f"torch {torch.__version__} is older than {OLDEST_WITH_BINDING[0]}.{OLDEST_WITH_BINDING[1]}"
    path = fw.beside("libflashwave_torch.so")
    if path is None:
        return "there is no libflashwave_torch.so beside libflashwave.so"
    try:
        binding = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path} cannot be loaded: {error}"
    # From 2.10 on torch lends its threads itself.
    openmp = (None, None) if _TORCH >= (2, 10) else (threads.executor(), threads.count_function())
    status = binding.flashwave_torch_register(ctypes.c_void_p(fw.lib._handle), *map(ctypes.c_void_p, openmp))
    if status != 0:
        return f"{path} was not taken ({status}): it is of another version, or loaded twice"
    dispatch.count_steering(ctypes.c_int32.in_dll(binding, "flashwave_torch_steering"))
    return None


why_no_binding = _register_binding()
ops = torch.ops.flashwave

"""Which backend computes a call: the library's kernels, Triton's, or PyTorch operations (docs/dispatch.md).

Nothing is remembered from one call to the next: a backend is tried, and where it refuses, the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

import torch

from . import settings, shapes
from .backends.native import calls as native
from .errors import BackendRefused, FlashwaveError, InvalidArgument, Unsupported
from .problem import Problem

Tensor = torch.Tensor
Outputs = tuple[Tensor, Optional[Tensor], Optional[Tensor]]

NATIVE, TRITON, TORCH = NAMES = ("native", "triton", "torch")


# ---------------------------------------------------------------------------------------------------------- the rules


class Facts(NamedTuple):
    """What the rules look at, of one call."""

    on_amd: bool  # the tensors are on an AMD GPU
    on_gpu: bool
    triton_on_amd: bool  # FLASH_ATTENTION_TRITON_AMD_ENABLE
    refused: bool  # the library has no kernel but, at most, the slow path


class Rule(NamedTuple):
    when: str
    holds: Callable[[Facts], bool]
    order: tuple[str, ...]  # the first of these that does not refuse computes the call


# The first rule that holds. Each backend says itself what it does not take: Triton CPU tensors, for instance.
RULES = (
    Rule(
        "FLASH_ATTENTION_TRITON_AMD_ENABLE is set and the GPU is AMD's",
        lambda facts: facts.on_amd and facts.triton_on_amd,
        (TRITON, NATIVE, TORCH),
    ),
    Rule(
        "the native kernel is the slow path of its GPU",
        lambda facts: facts.on_gpu and facts.refused,
        (TRITON, NATIVE, TORCH),
    ),
    Rule("in every other case", lambda facts: True, (NATIVE, TRITON, TORCH)),
)


# ----------------------------------------------------------------------------------------------- asking for a backend

_asked: ContextVar[Optional[str]] = ContextVar("flashwave_backend", default=None)
_steering = ctypes.c_int32()  # the binding's, where there is one: how many `with backend()` there are
_steering_lock = threading.Lock()


def count_steering(counter: ctypes.c_int32) -> None:
    """Lets the binding see whether backends are asked for anywhere."""
    global _steering
    with _steering_lock:
        counter.value = _steering.value
        _steering = counter


def _steer(change: int) -> None:
    with _steering_lock:
        _steering.value += change


def _known(name: str, where: str) -> str:
    if name not in NAMES:
        raise InvalidArgument(f"{where} must be one of {', '.join(NAMES)}, got {name!r}")
    return name


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Calls of this thread inside the `with` take the backend "native", "triton" or "torch", or fail with the reason.

    So do their backwards, wherever those run. The innermost of several counts, and any counts more than
    FLASHWAVE_BACKEND.
    """
    token = _asked.set(_known(name, "flashwave.backend()"))
    _steer(1)
    try:
        yield
    finally:
        _steer(-1)
        _asked.reset(token)


_variables = settings.VARIABLES
_BACKEND = settings.variable("FLASHWAVE_BACKEND")


def chosen() -> str | None:
    """The backend that is asked for here by name, if any."""
    name = _asked.get()
    if name is None and _BACKEND in _variables:
        name = settings.backend()
        return _known(name, "FLASHWAVE_BACKEND") if name else None
    return name


def _with_kernel(choice: str | None, op: str) -> str | None:
    """A kernel of the library that is asked for by name is a choice of the backend, too."""
    if choice == NATIVE or not settings.kernel():
        return choice
    if choice is not None:
        raise BackendRefused(choice, op, "FLASHWAVE_FORCE_KERNEL asks for a kernel of the backend 'native'")
    return NATIVE


# ------------------------------------------------------------------------------------------------------------ running


class _Call(NamedTuple):
    op: str  # "forward", "backward"
    problem: Problem
    compute: Callable[[str, bool], tuple[Any, str]]  # (backend, slow_path) -> results, name of the kernel
    needs: tuple[bool, ...] | None = None
    probs: bool = False


def _triton() -> ModuleType:
    from .backends.triton import backend as triton_backend  # not before a GPU needs it

    return triton_backend


def _torch() -> ModuleType:
    from .backends.torch import backend as torch_backend  # nor this, which takes a while, without need

    return torch_backend


def _triton_refusal(call: _Call, asked_for: bool) -> str | None:
    if not (asked_for or call.problem.q.is_cuda):  # Triton takes long to import, to hear that
        return f"its kernels are for GPUs, and q is on {call.problem.q.device}"
    try:
        return _triton().refusal(call.problem, call.op, call.needs, call.probs)
    except Exception as error:  # a Triton that is broken must not break the call
        return f"it is broken: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _try(call: _Call, name: str, asked_for: bool, slow_path: bool = True) -> tuple[Any, str]:
    """(results, kernel) of one backend, or (None, why not)."""
    if name == TRITON:
        reason = _triton_refusal(call, asked_for)
        if reason is not None:
            return None, reason
    try:
        return call.compute(name, slow_path)
    except Unsupported as error:
        return None, str(error)
    except (FlashwaveError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if name != TRITON:
            raise
        # Its compiler runs now, and with it whatever is wrong with it, or with the C compiler that it calls.
        reason = f"it failed: {type(error).__name__}: {_first_line(error)}"
        if asked_for:
            raise BackendRefused(name, call.op, reason) from error
        warnings.warn(f"flashwave passes over Triton for a {call.op}: {reason}", RuntimeWarning, stacklevel=2)
        return None, reason


def _run(call: _Call, refused: bool) -> Any:
    """The results of the first backend that succeeds. refused: the library already said no to all but its slow path."""
    choice, q = _with_kernel(chosen(), call.op), call.problem.q
    if choice is not None:
        results, told = _try(call, choice, True)
        if results is None:
            shapes.check(call.problem)  # what no backend would take is an invalid argument
            raise BackendRefused(choice, call.op, told)
        return _said(call, results, choice, told, f"'{choice}' was asked for", {})
    facts = Facts(q.is_cuda and torch.version.hip is not None, q.is_cuda, settings.triton_on_amd(), refused)
    if facts.on_gpu and not refused and not RULES[0].holds(facts):
        results, told = _try(call, NATIVE, False, slow_path=False)
        if results is not None:
            return _said(call, results, NATIVE, told, RULES[-1].when, {})
        facts = facts._replace(refused=True)
    rule, _, order = next(rule for rule in RULES if rule.holds(facts))
    passed_over: dict[str, str] = {}
    for name in order:
        results, told = _try(call, name, False)
        if results is not None:
            return _said(call, results, name, told, rule, passed_over)
        passed_over[name] = told
    why = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
    raise Unsupported(f"no backend computes this {call.op}: {why}")


def _said(call: _Call, results: Any, name: str, kernel: str, rule: str, passed_over: dict[str, str]) -> Any:
    if settings.debug():
        p, short = call.problem, {"forward": "fwd", "backward": "bwd"}[call.op]
        sizes = f"q={tuple(p.q.shape)} k={tuple(p.k.shape)} v={tuple(p.v.shape)} {p.q.dtype}"
        why = "".join([f"; passed over {other}: {reason}" for other, reason in passed_over.items()])
        settings.say(f"{short} {sizes} | device={p.q.device} backend={name} kernel={kernel} ({rule}{why})")
    return results


def forward(
    problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False, refused: bool = False
) -> Outputs:
    """(out, lse, probs), the last two only sure to be there if wanted."""
    if not problem.deterministic and settings.is_deterministic(problem.q):
        problem = problem._replace(deterministic=True)

    def compute(name: str, slow_path: bool) -> tuple[Outputs, str]:
        if name == NATIVE:
            return native.forward(problem, out, lse, probs, slow_path)
        if not refused:  # else the library has seen it
            native.validate(problem)
        if name == TRITON:
            return _triton().forward(problem, out, lse), "triton_forward"
        return _torch().forward(problem, out, lse, probs), "torch_forward"

    return _run(_Call("forward", problem, compute, probs=probs), refused)


def backward(
    problem: Problem,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: tuple[bool, ...],
    refused: bool = False,
) -> native.Gradient6:
    """Gradients of q, k, v, alibi_slopes, bias and sinks, None where not needed."""
    arguments = problem, dout, dlse, out, lse, needs

    def compute(name: str, slow_path: bool) -> tuple[native.Gradient6, str]:
        if name == NATIVE:
            return native.backward(*arguments, slow_path)
        if not refused:
            native.validate(problem, backward=True)
        if name == TRITON:
            return _triton().backward(*arguments), "triton_backward"
        return _torch().backward(*arguments), "torch_backward"

    return _run(_Call("backward", problem, compute, needs), refused)

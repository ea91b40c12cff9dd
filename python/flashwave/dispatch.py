"""Which backend computes a call: the library's kernels, Triton's, or PyTorch operations (docs/dispatch.md).

The answer depends on a call's layout and on settings, not on numbers, so it is found once for each layout. For CPU
tensors it is known beforehand: eager calls on the CPU look at nothing but whether a backend was asked for by name.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

import torch

from . import settings
from .backends.native import backend as native_backend
from .backends.native import calls as native
from .backends.torch import backend as torch_backend
from .errors import BackendRefused, FlashwaveError, InvalidArgument, Unsupported
from .problem import Problem

Tensor = torch.Tensor
Outputs = tuple[Tensor, Optional[Tensor], Optional[Tensor]]

NATIVE, TRITON, TORCH = NAMES = ("native", "triton", "torch")
_MOST_KEPT = 1024  # decisions; a program with more layouts than this starts over
_NO_KERNEL = "no kernel of the device takes it"


# ---------------------------------------------------------------------------------------------------------- the rules


class Facts(NamedTuple):
    """What the rules look at, of one call."""

    on_amd: bool  # the tensors are on an AMD GPU
    on_gpu: bool
    triton_on_amd: bool  # FLASH_ATTENTION_TRITON_AMD_ENABLE
    plan: native.Plan  # the library's


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
        lambda facts: facts.on_gpu and facts.plan.slow_path,
        (TRITON, NATIVE, TORCH),
    ),
    Rule("in every other case", lambda facts: True, (NATIVE, TRITON, TORCH)),
)


# ----------------------------------------------------------------------------------------------- asking for a backend

_asked: ContextVar[Optional[str]] = ContextVar("flashwave_backend", default=None)


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
    try:
        yield
    finally:
        _asked.reset(token)


_variables = settings.VARIABLES
_BACKEND, _DEBUG = settings.variable("FLASHWAVE_BACKEND"), settings.variable("FLASH_ATTENTION_DEBUG")
_KERNEL = settings.variable("FLASHWAVE_FORCE_KERNEL")
_TRITON_ON_AMD = settings.variable("FLASH_ATTENTION_TRITON_AMD_ENABLE")


def steered() -> bool:
    """Whether a call here may be told which backend to take, or to say what it does: the quick question."""
    return _BACKEND in _variables or _DEBUG in _variables or _asked.get() is not None


def chosen() -> str | None:
    """The backend that is asked for here by name, if any."""
    name = _asked.get()
    if name is None and _BACKEND in _variables:
        name = settings.backend()
        return _known(name, "FLASHWAVE_BACKEND") if name else None
    return name


# ----------------------------------------------------------------------------------------------------------- deciding


class _Call(NamedTuple):
    op: str  # "forward", "backward"
    problem: Problem
    needs: tuple[bool, ...] | None = None
    probs: bool = False
    dlse: bool = False


class Decision(NamedTuple):
    backend: str
    kernel: str
    rule: str
    passed_over: tuple[tuple[str, str], ...]  # (backend, why) of those before it


_decisions: dict[tuple, Decision] = {}


def _triton() -> ModuleType:
    from .backends.triton import backend as triton_backend  # not before a GPU needs it

    return triton_backend


def _triton_refusal(call: _Call, asked_for: bool) -> str | None:
    if not (asked_for or call.problem.q.is_cuda):  # Triton takes long to import, to hear that
        return f"its kernels are for GPUs, and q is on {call.problem.q.device}"
    try:
        return _triton().refusal(call.problem, call.op, call.needs, call.probs)
    except Exception as error:  # a Triton that is broken must not break the call
        return f"it is broken: {type(error).__name__}: {_first_line(error)}"


def _decide(call: _Call, choice: str | None, failed: dict[str, str]) -> Decision:
    """Asks each backend in the order of the rule that holds. failed: backends that were chosen and did not succeed."""
    op, problem, needs, probs, dlse = call
    q = problem.q
    on_amd = q.is_cuda and torch.version.hip is not None
    plan, rule = native.Plan(None, False, None), f"'{choice}' was asked for"
    if choice in (None, NATIVE):
        plan = native_backend.plan(problem, needs, probs, dlse)
    else:
        native.validate(problem, backward=op == "backward")
    order: tuple[str, ...] = (choice or NATIVE,)
    if choice is None:
        facts = Facts(on_amd, q.is_cuda, settings.triton_on_amd(), plan)
        rule, _, order = next(rule for rule in RULES if rule.holds(facts))
    refusals: dict[str, Callable[[], str | None]] = {
        NATIVE: lambda: plan.refusal,
        TRITON: lambda: _triton_refusal(call, choice is not None),
        TORCH: lambda: torch_backend.refusal(problem, op, needs, probs),
    }
    kernels = {NATIVE: plan.kernel or "none", TRITON: f"triton_{op}", TORCH: f"composed.{op}"}
    passed_over = []
    for name in order:
        reason = failed.get(name) or refusals[name]()
        if reason is None:
            return Decision(name, kernels[name], rule, tuple(passed_over))
        passed_over.append((name, reason))
    if choice is not None:
        raise BackendRefused(choice, op, reason)
    raise Unsupported(f"no backend computes this {op}: " + "; ".join(f"{name}: {why}" for name, why in passed_over))


def _decision(call: _Call, choice: str | None, layout: tuple) -> tuple[tuple, Decision]:
    """With the key that it is kept under: all that it depends on."""
    environment = None  # as usual
    if _KERNEL in _variables or _TRITON_ON_AMD in _variables:
        environment = settings.kernel(), settings.triton_on_amd()
    key = call.op, choice, call.needs, call.dlse, environment, native.seed_is_out_of_reach(call.problem), layout
    found = _decisions.get(key)
    if found is None:
        found = _keep(key, _decide(call, choice, {}))
    return key, found


def _keep(key: tuple, decision: Decision) -> Decision:
    if len(_decisions) >= _MOST_KEPT:
        _decisions.clear()
    _decisions[key] = decision
    return decision


def _with_kernel(choice: str | None, op: str) -> str | None:
    """A kernel of the library that is asked for by name is a choice of the backend, too."""
    if _KERNEL not in _variables or choice == NATIVE or not settings.kernel():
        return choice
    if choice is not None:
        raise BackendRefused(choice, op, "FLASHWAVE_FORCE_KERNEL asks for a kernel of the backend 'native'")
    return NATIVE


def forward_is_native(problem: Problem) -> bool:
    """Whether the library computes the forward of out alone, so that its struct can be kept and used again."""
    if problem.q.is_cpu and chosen() is None:
        return native.device_of(problem.q) is not None
    choice = _with_kernel(chosen(), "forward")
    layout = native.layout_key(problem, None, False, False)
    return _decision(_Call("forward", problem), choice, layout)[1].backend == NATIVE


# ------------------------------------------------------------------------------------------------------------ running


def _say(call: _Call, decision: Decision) -> None:
    p, short = call.problem, {"forward": "fwd", "backward": "bwd"}[call.op]
    sizes = f"q={tuple(p.q.shape)} k={tuple(p.k.shape)} v={tuple(p.v.shape)} {p.q.dtype}"
    why = "; ".join([f"passed over {name}: {reason}" for name, reason in decision.passed_over])
    settings.say(
        f"{short} {sizes} | device={p.q.device} backend={decision.backend} kernel={decision.kernel} "
        f"({decision.rule}{'; ' + why if why else ''})"
    )


def _run(call: _Call, choice: str | None, layout: tuple, compute: Callable[[str], Any]) -> Any:
    """compute(backend) of the first backend that succeeds."""
    choice = _with_kernel(choice, call.op)
    key, decision = _decision(call, choice, layout)
    failed: dict[str, str] = {}
    while True:
        if _DEBUG in _variables and settings.debug():
            _say(call, decision)
        cause = None
        try:
            results = compute(decision.backend)
        except (FlashwaveError, MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            if decision.backend != TRITON:
                raise
            # Its compiler runs now, and with it whatever is wrong with it, or with the C compiler that it calls.
            results, cause = None, error
        if results is not None:
            return results
        reason = _NO_KERNEL if cause is None else f"it failed: {type(cause).__name__}: {_first_line(cause)}"
        if choice is not None:
            raise BackendRefused(choice, call.op, reason) from cause
        if cause is not None:
            warnings.warn(f"flashwave passes over Triton for a {call.op}: {reason}", RuntimeWarning, stacklevel=2)
        failed[decision.backend] = reason
        decision = _keep(key, _decide(call, choice, failed))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def forward(problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False) -> Outputs:
    """(out, lse, probs), the last two only sure to be there if wanted."""
    if problem.q.is_cpu and not steered():
        results = native_backend.forward(problem, out, lse, probs)
        if results is not None:
            return results
    choice, layout = chosen(), native.layout_key(problem, out, lse, probs)

    def compute(name: str) -> Outputs | None:
        if name == NATIVE:
            return native_backend.forward(problem, out, lse, probs, layout)
        if name == TRITON:
            return _triton().forward(problem, out, lse)
        return torch_backend.forward(problem, out, lse, probs)

    return _run(_Call("forward", problem, probs=probs), choice, layout, compute)


def backward(
    problem: Problem,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: tuple[bool, ...],
    choice: str | None = None,
) -> native.Gradient6:
    """Gradients of q, k, v, alibi_slopes, bias and sinks, None where not needed. choice: what chosen() was before."""
    arguments = problem, dout, dlse, out, lse, needs
    if choice is None and problem.q.is_cpu and _DEBUG not in _variables:
        gradients = native_backend.backward(*arguments)
        if gradients is not None:
            return gradients
    modules = {NATIVE: lambda: native_backend, TRITON: _triton, TORCH: lambda: torch_backend}
    call = _Call("backward", problem, needs, dlse=dlse is not None)
    layout = native.layout_key(problem, dout, True, False)
    return _run(call, choice, layout, lambda name: modules[name]().backward(*arguments))

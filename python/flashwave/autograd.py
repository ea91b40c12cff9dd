"""One attention on torch tensors and its gradient: the way from a `Problem` to the operators that compute.

A call that nothing differentiates goes straight to an operator. Every other goes through an autograd.Function, whose
backward is again an operator. There is no forward-mode derivative and no second one: both raise, on every route. The
public operators `flashwave::forward`, `flashwave::forward_append` and `flashwave::backward` are these functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from . import operators, settings
from .dispatch import Outputs, backend, chosen
from .errors import InvalidArgument, Unsupported
from .flops import register_when_needed
from .operators import bits_of, ops, raise_for
from .problem import FORWARD_FIELDS, NAMES_OF_GRADIENTS, Problem

Tensor = torch.Tensor

_TENSORS = 13  # the leading fields of a problem
_SCALARS = len(FORWARD_FIELDS)
DIFFERENTIABLE = tuple(Problem._fields.index(name) for name in NAMES_OF_GRADIENTS)

_dense, _dense_lse, _dense_backward = ops._dense.default, ops._dense_lse.default, ops._dense_backward.default
_varlen, _cached, _cached_append = ops._varlen.default, ops._cached.default, ops._cached_append.default
_forward, _forward_given, _append = ops._forward.default, ops._forward_given.default, ops._append.default
_backward = ops._backward.default

_transforms = torch._C._are_functorch_transforms_active
_grad_enabled, _is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling


# ----------------------------------------------------------------------------------------------- is it differentiated


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether autograd, forward-mode AD or torch.func may want a derivative of a call on these tensors."""
    if _transforms() or forward_ad._current_level >= 0:
        return True
    if not _grad_enabled():
        return False
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def refuse_derivatives(what: str, *tensors: Tensor | None) -> None:
    """For a call without a gradient: raises where torch.func or forward-mode AD would take 0 for its derivative."""
    if forward_ad._current_level >= 0:
        for tensor in tensors:
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise Unsupported(f"{what} has no derivative")
    layer = torch._C._functorch.peek_interpreter_stack() if _transforms() else None
    if layer is not None and layer.key().name in ("Grad", "Jvp"):
        raise Unsupported(f"{what} has no derivative, and is called under torch.func.{layer.key().name.lower()}")


def no_jvp(*_: Any) -> None:
    raise Unsupported("flashwave's attention has no forward-mode derivative; reverse mode (torch.func.vjp, grad) works")


def no_second_derivative(*_: Any) -> None:
    raise Unsupported("flashwave's attention has no second derivative")


def tell_autograd(*tensors: Tensor | None) -> None:
    """Tensors were changed behind its back: what was kept of them for a gradient is no longer what it was."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


# ---------------------------------------------------------------------------------------------------------- functions


class _Function(torch.autograd.Function):
    """`compute(*inputs)` and, of what `save(ctx, inputs, output)` keeps, `backward`. No forward-mode derivative.

    torch.func asks for a setup_context, with which a call takes 30 microseconds more. So there are two of each:
    `call` takes the one that is needed.
    """

    jvp = staticmethod(no_jvp)

    @classmethod
    def forward(cls, ctx: Any, *inputs: Any) -> tuple:  # type: ignore[override]
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        if "compute" not in cls.__dict__:
            return

        def forward(ctx: Any, *inputs: Any) -> tuple:
            output = cls.compute(*inputs)
            cls.save(ctx, inputs, output)
            return output

        cls.forward = staticmethod(forward)
        transformed = {"forward": staticmethod(cls.compute), "setup_context": staticmethod(cls.save)}
        transformed |= {"backward": staticmethod(cls.backward), "jvp": cls.__dict__.get("jvp", staticmethod(no_jvp))}
        parts = {"forward": cls.forward, "backward": transformed["backward"], "jvp": transformed["jvp"]}
        cls.single = type(cls.__name__, (_SingleLevelFunction,), {n: staticmethod(f) for n, f in parts.items()})
        cls.transformed = type(cls.__name__, (torch.autograd.Function,), {**transformed, "generate_vmap_rule": True})

    @classmethod
    def call(cls, *inputs: Any) -> tuple:
        return cls.transformed.apply(*inputs) if _transforms() else cls.apply(*inputs)

    @classmethod
    def call_inside(cls, *inputs: Any) -> tuple:
        """From a kernel of an operator, which torch.func calls once for each of its transforms."""
        with enable_single_level_autograd_function():
            return cls.single.apply(*inputs)


class _Gradients(_Function):
    """`_backward` where its results may be differentiated again, which raises."""

    jvp = staticmethod(no_second_derivative)

    @staticmethod
    def compute(needs: int, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *fields: Any) -> tuple:
        return _backward(dout, dlse, out, lse, needs, *fields)

    @staticmethod
    def save(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    backward = staticmethod(no_second_derivative)


def _gradients(ctx: Any, problem: Problem, dout: Tensor | None, dlse: Any, out: Tensor, lse: Tensor, needs: tuple):
    if dout is None and dlse is None:
        return (None,) * len(NAMES_OF_GRADIENTS)
    if dout is None:
        dout = torch.zeros_like(out)
    if ctx.backend is not None:
        with backend(ctx.backend):  # the backward may run elsewhere: in another thread, outside a `with`
            return _computed(problem, dout, dlse, out, lse, needs)
    return _computed(problem, dout, dlse, out, lse, needs)


def _computed(problem: Problem, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: tuple) -> list:
    fields, bits = problem[:_SCALARS], bits_of(needs)
    try:
        if _grad_enabled():
            results = _Gradients.call(bits, dout, dlse, out, lse, *fields)
        else:
            results = _backward(dout, dlse, out, lse, bits, *fields)
    except RuntimeError as error:
        raise_for(error)
    return [result if needed else None for result, needed in zip(results, needs)]


class _Dense(_Function):
    """Attention of q, k and v with a mask and nothing else: (out, lse)."""

    compute = staticmethod(lambda *inputs: _dense_lse(*inputs))

    @staticmethod
    def save(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.scalars, ctx.backend = inputs[3:], chosen()

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
        q, k, v, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if dlse is None and dout is not None and all(needs) and ctx.backend is None and not _grad_enabled():
            try:
                results = _dense_backward(dout, out, lse, q, k, v, *ctx.scalars)
            except RuntimeError as error:
                raise_for(error)
        else:
            *mask, deterministic = ctx.scalars
            problem = operators.dense_problem(q, k, v, mask, deterministic)
            results = _gradients(ctx, problem, dout, dlse, out, lse, (*needs, False, False, False))
        return (*results[:3], None, None, None, None, None, None)


class _Attention(_Function):
    """Any attention but one that appends: (out, lse, probs). Inputs: the problem's fields, whether probs is wanted."""

    compute = staticmethod(lambda *inputs: _forward(*inputs[:_SCALARS], True, inputs[_SCALARS]))

    @staticmethod
    def save(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:_TENSORS], output[0], output[1])
        ctx.scalars, ctx.backend = inputs[_TENSORS:_SCALARS], chosen()

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> tuple:
        *tensors, out, lse = ctx.saved_tensors
        needs = tuple([bool(ctx.needs_input_grad[place]) for place in DIFFERENTIABLE])
        results = _gradients(ctx, Problem(*tensors, *ctx.scalars), dout, dlse, out, lse, needs)
        gradients: list = [None] * (_SCALARS + 1)
        for place, gradient in zip(DIFFERENTIABLE, results):
            gradients[place] = gradient
        return tuple(gradients)


# -------------------------------------------------------------------------------------------------------------- calls


def dense(q: Tensor, k: Tensor, v: Tensor, *mask: Any) -> Tensor:
    """out of q, k, v and (softmax_scale, causal, window_left, window_right, softcap)."""
    try:
        if is_differentiated(q, k, v):
            return _Dense.call(q, k, v, *mask, settings.is_deterministic(q))[0]
        return _dense(q, k, v, *mask)
    except RuntimeError as error:
        raise_for(error)


def varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *mask: Any) -> Tensor:
    """out of packed q, k and v, which nothing differentiates."""
    try:
        return _varlen(q, k, v, cu_q, cu_k, max_q, max_k, *mask)
    except RuntimeError as error:
        raise_for(error)


def cached(q: Tensor, k: Tensor, v: Tensor, new_keys: tuple, cache: tuple, mask: tuple, *rest: Any) -> Tensor:
    """out of q and a cache, to which new_keys = (k, v, cos, sin) are appended first. rest: num_splits, interleaved."""
    try:
        if new_keys[0] is None and new_keys[1] is None and new_keys[2] is None and new_keys[3] is None:
            return _cached(q, k, v, *cache, *mask, rest[0])
        out = _cached_append(q, k, v, *new_keys, *cache, *mask, *rest)
    except RuntimeError as error:
        raise_for(error)
    tell_autograd(k, v)
    return out


def attend(problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False) -> Outputs:
    """The differentiable attention: (out, lse, probs), the last two only sure to be there if wanted.

    lse is -inf in rows that see nothing; probs has no gradient.
    """
    if _is_compiling():
        return _attend_in_graph(problem, out, lse, probs)
    try:
        return _attend(problem, out, lse, probs)
    except RuntimeError as error:
        raise_for(error)


def _attend(problem: Problem, out: Tensor | None, lse: bool, probs: bool, function: Any = _Attention.call) -> Outputs:
    if is_differentiated(*problem[:3], *problem[9:12]):
        if out is not None:
            raise InvalidArgument("out cannot be used when an input requires a gradient")
        if problem.k_new is not None:
            raise InvalidArgument("k cannot be appended to a cache when an input requires a gradient")
        return function(*problem[:_SCALARS], probs)
    if problem.k_new is not None:
        result, row_lse = _append(*problem, lse)
        tell_autograd(problem.k, problem.v)
        return (result if out is None else out.copy_(result)), row_lse, None
    if out is None:
        return _forward(*problem[:_SCALARS], lse, probs)
    if _grad_enabled() and out.requires_grad:
        raise InvalidArgument("out must not require a gradient: it is overwritten")
    row_lse, matrix = _forward_given(out, *problem[:_SCALARS], lse, probs)
    tell_autograd(out)
    return out, row_lse, matrix


def gradients(problem: Problem, dout: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
    """dq, dk and dv for those who keep out and lse themselves."""
    with torch.no_grad():
        return _computed(problem, dout, None, out, lse, (True, True, True, False, False, False))[:3]


def _attend_in_graph(problem: Problem, out: Tensor | None, lse: bool, probs: bool) -> Outputs:
    """By the public operators: torch.compile sees one node for a call, whose inside is traced when gradients are."""
    if problem.k_new is not None:
        result, row_lse = ops.forward_append.default(*problem, lse)
        matrix = None
    else:
        result, row_lse, matrix = ops.forward.default(*problem[:_SCALARS], probs, lse)
    return (result if out is None else out.copy_(result)), row_lse, matrix


# --------------------------------------------------------------------------------------------------- public operators


def _public_forward(*arguments: Any) -> tuple:
    probs, lse = (*arguments[_SCALARS:], True)[:2]
    out, row_lse, matrix = _attend(Problem(*arguments[:_SCALARS]), None, lse, probs, _Attention.call_inside)
    return out, row_lse if lse else row_lse.new_empty((0,)), matrix


def _public_append(*arguments: Any) -> tuple:
    problem, lse = Problem(*arguments[: len(Problem._fields)]), (*arguments[len(Problem._fields) :], True)[0]
    refuse_derivatives("flashwave::forward_append", *problem[:3])
    return _append(*problem, lse)


def _public_backward(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: int, *fields: Any) -> tuple:
    if is_differentiated(dout, dlse, *fields[:3]):
        return _Gradients.call_inside(needs, dout, dlse, out, lse, *fields)
    return _backward(dout, dlse, out, lse, needs, *fields)


for _name, _schema, _function in (
    (
        "forward",
        f"({operators.READ}, bool return_probs, bool return_lse=True) -> (Tensor, Tensor, Tensor)",
        _public_forward,
    ),
    ("forward_append", f"({operators.APPENDED}, bool return_lse=True) -> (Tensor, Tensor)", _public_append),
    ("backward", operators.SCHEMAS["_backward"], _public_backward),
):
    operators.library.define(_name + _schema)
    operators.library.impl(_name, _function, "CompositeImplicitAutograd")
register_when_needed()

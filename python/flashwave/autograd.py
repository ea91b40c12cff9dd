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
from .operators import WIDEST_PACKED, bits_of, ops, packed_mask, raise_for
from .problem import FORWARD_FIELDS, NAMES_OF_GRADIENTS, Problem

Tensor = torch.Tensor

_TENSORS = 13  # the leading fields of a problem
_SCALARS = len(FORWARD_FIELDS)
DIFFERENTIABLE = tuple(Problem._fields.index(name) for name in NAMES_OF_GRADIENTS)

# Without the frame of OpOverload.__call__, which only passes arguments on.
_dense, _dense_lse = ops._dense.default._op, ops._dense_lse.default._op
_dense_backward = ops._dense_backward.default._op
_plain_lse, _plain_backward = ops._plain_lse.default._op, ops._plain_backward.default._op
_varlen, _cached = ops._varlen.default._op, ops._cached.default._op
_append_step, _cached_append = ops._append_step.default._op, ops._cached_append.default._op
_forward, _forward_given = ops._forward.default._op, ops._forward_given.default._op
_append, _backward = ops._append.default._op, ops._backward.default._op

_transforms = torch._C._are_functorch_transforms_active
_increment_versions = torch._C._increment_version
_grad_enabled, _is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling
_deterministic_algorithms = torch._C._get_deterministic_algorithms


# ----------------------------------------------------------------------------------------------- is it differentiated


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether autograd, forward-mode AD or torch.func may want a derivative of a call on these tensors."""
    if _grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return _transforms() or forward_ad._current_level >= 0


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


def tell_autograd(*tensors: Tensor) -> None:
    """Tensors were changed behind its back: what was kept of them for a gradient is no longer what it was."""
    try:
        _increment_versions(tensors)
    except (TypeError, RuntimeError):  # an older torch, which takes one tensor, and none of inference mode
        for tensor in tensors:
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)


# ---------------------------------------------------------------------------------------------------------- functions


class _Function(torch.autograd.Function):
    """A function with `compute(*inputs)`, `save(ctx, inputs, output)` and `backward`, for each way to come here.

    torch.func asks for a setup_context, with which a call takes 30 microseconds more, and calls the kernel of an
    operator once for each of its transforms, where a function must be one of a single level.
    """

    generate_vmap_rule = False
    jvp = staticmethod(no_jvp)

    def __init_subclass__(cls) -> None:
        def forward(ctx: Any, *inputs: Any) -> tuple:
            output = cls.compute(*inputs)
            cls.save(ctx, inputs, output)
            return output

        shared = {"backward": staticmethod(cls.backward), "jvp": staticmethod(cls.jvp)}
        setup = {"forward": staticmethod(cls.compute), "setup_context": staticmethod(cls.save)}
        name, cls.forward = cls.__name__, staticmethod(forward)
        cls.transformed = type(name, (torch.autograd.Function,), {**shared, **setup, "generate_vmap_rule": True})
        cls.single = type(name, (_SingleLevelFunction,), {**shared, "forward": staticmethod(forward)})

    @classmethod
    def call(cls, *inputs: Any) -> tuple:
        return cls.transformed.apply(*inputs) if _transforms() else cls.apply(*inputs)

    @classmethod
    def call_inside(cls, *inputs: Any) -> tuple:
        """From a kernel of an operator."""
        with enable_single_level_autograd_function():
            return cls.single.apply(*inputs)


class _Gradients(_Function):
    """`_backward` where its results may be differentiated again, which raises."""

    backward, jvp = staticmethod(no_second_derivative), staticmethod(no_second_derivative)

    @staticmethod
    def compute(needs: int, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *fields: Any) -> tuple:
        return _backward(dout, dlse, out, lse, needs, *fields)

    @staticmethod
    def save(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass


def _gradients(
    asked: str | None, problem: Problem, dout: Tensor | None, dlse: Any, out: Tensor, lse: Tensor, needs: tuple
) -> Any:
    if dout is None and dlse is None:
        return (None,) * len(NAMES_OF_GRADIENTS)
    if dout is None:
        dout = torch.zeros_like(out)
    if asked is not None:
        with backend(asked):  # the backward may run elsewhere: in another thread, outside a `with`
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


class _Plain(torch.autograd.Function):
    """`_Attention` of q, k and v with a mask at most, in half the time; not for torch.func.

    The last input is (scale, packed mask, backend): one tuple, since autograd looks at each input.
    """

    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scalars: tuple) -> Tensor:  # type: ignore[override]
        out, lse = _plain_lse(q, k, v, scalars[0], scalars[1])
        ctx.to_save = q, k, v, out, lse  # save_for_backward, without its frame
        if scalars != _USUAL:  # else the node needs no dictionary: see below
            ctx.scalars = scalars
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        scale, packed, asked = ctx.scalars
        if asked is not None or ctx.needs_input_grad != _ALL_THREE or _grad_enabled():
            return _gradients_of_packed(ctx, dout, q, k, v, out, lse)
        try:
            dq, dk, dv = _plain_backward(dout, out, lse, q, k, v, scale, packed)
        except RuntimeError as error:
            raise_for(error)
        return dq, dk, dv, None


class _Dense(torch.autograd.Function):
    """`_Plain` with softcap and dropout, whose numbers stand before the backend."""

    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scalars: tuple) -> Tensor:  # type: ignore[override]
        out, lse = _dense_lse(q, k, v, *scalars[:-1])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scalars = scalars
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        *scalars, asked = ctx.scalars
        if asked is not None or ctx.needs_input_grad != _ALL_THREE or _grad_enabled():
            return _gradients_of_packed(ctx, dout, q, k, v, out, lse)
        try:
            dq, dk, dv = _dense_backward(dout, out, lse, q, k, v, *scalars)
        except RuntimeError as error:
            raise_for(error)
        return dq, dk, dv, None


_USUAL = (None, 0, None)  # of _Plain: the default scale, no mask, no backend asked for
_ALL_THREE = (True, True, True, False)  # of q, k and v, and no gradient of what is no tensor


def _gradients_of_packed(ctx: Any, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple:
    """The backward of `_Plain` and `_Dense` by the operator that takes everything."""
    *scalars, asked = ctx.scalars
    needs = *ctx.needs_input_grad[:3], False, False, False
    problem = operators.packed_problem(q, k, v, *scalars)
    return (*_gradients(asked, problem, dout, None, out, lse, needs)[:3], None)


# What autograd calls of a node: our function at once, where torch's own looks for it in three frames.
_Plain._backward_cls.apply, _Dense._backward_cls.apply = _Plain.backward, _Dense.backward
_Plain._backward_cls.scalars = _USUAL


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
        results = _gradients(ctx.backend, Problem(*tensors, *ctx.scalars), dout, dlse, out, lse, needs)
        gradients: list = [None] * (_SCALARS + 1)
        for place, gradient in zip(DIFFERENTIABLE, results):
            gradients[place] = gradient
        return tuple(gradients)


# -------------------------------------------------------------------------------------------------------------- calls


def plain(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """Attention with no options but these."""
    try:
        if _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            packed = 1 if causal else 0
            if not q.is_cpu and (_deterministic_algorithms() or settings.deterministic()):
                packed |= 2
            return _Plain.apply(q, k, v, (scale, packed, chosen()))  # under torch.func raises before it computes
        if not _transforms() and forward_ad._current_level < 0:
            return _dense(q, k, v, scale, causal, -1, -1, 0.0)
    except RuntimeError as error:
        if not _transforms():
            raise_for(error)
    return dense(q, k, v, (scale, causal, -1, -1, 0.0))


def dense(
    q: Tensor, k: Tensor, v: Tensor, mask: tuple, rng_state: Tensor | None = None, dropout_p: float = 0.0
) -> Tensor:
    """Attention with a mask and dropout and nothing else."""
    scale, causal, left, right, softcap = mask
    packable = left <= WIDEST_PACKED and right <= WIDEST_PACKED
    try:
        if is_differentiated(q, k, v):
            deterministic = not q.is_cpu and (_deterministic_algorithms() or settings.deterministic())
            if _transforms() or not packable:
                problem = operators.dense_problem(q, k, v, mask, deterministic, rng_state, dropout_p)
                return _Attention.call(*problem[:_SCALARS], False)[0]
            packed = packed_mask(causal, left, right, deterministic)
            if softcap or dropout_p:
                return _Dense.apply(q, k, v, (scale, packed, softcap, rng_state, dropout_p, chosen()))
            return _Plain.apply(q, k, v, (scale, packed, chosen()))
        if not dropout_p:
            return _dense(q, k, v, *mask)
        if packable:  # half the arguments, for a log-sum-exp nobody reads
            packed = packed_mask(causal, left, right, False)
            return _dense_lse(q, k, v, scale, packed, softcap, rng_state, dropout_p)[0]
        problem = operators.dense_problem(q, k, v, mask, False, rng_state, dropout_p)
        return _forward(*problem[:_SCALARS], False, False)[0]
    except RuntimeError as error:
        raise_for(error)


def varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, mask: tuple) -> Tensor:
    """out of packed q, k and v, which nothing differentiates."""
    try:
        return _varlen(q, k, v, cu_q, cu_k, max_q, max_k, *mask)
    except RuntimeError as error:
        raise_for(error)


def cached(q: Tensor, k: Tensor, v: Tensor, new_keys: tuple, cache: tuple, mask: tuple, *rest: Any) -> Tensor:
    """out of q and a cache, to which new_keys = (k, v, cos, sin) are appended first. rest: num_splits, interleaved."""
    try:
        if new_keys[0] is new_keys[1] is new_keys[2] is new_keys[3] is None:
            return _cached(q, k, v, *cache, *mask, rest[0])
        out = _cached_append(q, k, v, *new_keys, *cache, *mask, *rest)
    except RuntimeError as error:
        raise_for(error)
    tell_autograd(k, v)
    return out


def append_step(q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor, used: Tensor, mask: tuple) -> Tensor:
    """`cached` of new keys and a cache without options, a step of decoding."""
    scale, causal, left, right, _ = mask
    try:
        out = _append_step(q, k, v, k_new, v_new, used, scale, causal, left, right)
    except RuntimeError as error:
        raise_for(error)
    tell_autograd(k, v)
    return out


def attend(problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False) -> Outputs:
    """The differentiable attention: (out, lse, probs), the last two only sure to be there if wanted.

    lse is -inf in rows that see nothing; probs has no gradient.
    """
    if _is_compiling():
        if forward_ad._current_level >= 0:  # tangents of its inputs, if any, are not seen, and older torch drops them
            no_jvp()
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

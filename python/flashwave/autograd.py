"""One attention on torch tensors: its gradient, and the custom operators. `dispatch` chooses the code that computes it.

In eager mode a call goes straight to `dispatch.forward` (through an autograd.Function if it needs a gradient), because
torch's way to a Python operator costs tens of microseconds. Under torch.compile, export, fake tensors or tensor
subclasses it goes through the operators `flashwave::forward`, `flashwave::backward`, `flashwave::forward_append`, which
are the same functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import shapes
from .backends.native import calls as native
from .dispatch import Outputs, backward, chosen, forward
from .errors import InvalidArgument
from .problem import APPEND_FIELDS, FORWARD_FIELDS, Problem

_TENSORS = 13  # the leading fields of a problem
_SCALARS = len(FORWARD_FIELDS)
DIFFERENTIABLE = tuple(Problem._fields.index(name) for name in ("q", "k", "v", "alibi_slopes", "bias", "sinks"))

# ------------------------------------------------------------------------------------------------------------ autograd


def save(ctx: Any, inputs: tuple, output: tuple) -> None:
    """What the backward needs of a problem's fields and of the forward's results."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], output[0], output[1])
    ctx.scalars = inputs[_TENSORS:_SCALARS]
    ctx.backend = chosen()  # the backward may run elsewhere: in another thread, outside a `with`


def _differentiate(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, dprobs: Any) -> tuple:
    *tensors, out, lse = ctx.saved_tensors
    gradients: list = [None] * len(ctx.needs_input_grad)
    if dout is None and dlse is None:
        return tuple(gradients)
    problem = Problem(*tensors, *ctx.scalars)
    if lse.dim() == 1:
        raise InvalidArgument(
            "flashwave::forward has no gradient where return_lse is False: the backward reads the lse"
        )
    if dout is None:
        dout = torch.zeros_like(out)
    needs = tuple([bool(ctx.needs_input_grad[place]) for place in DIFFERENTIABLE])
    if is_plain(problem.q, dout):
        results = backward(problem, dout, dlse, out, lse, needs, ctx.backend)
    else:
        results = torch.ops.flashwave.backward.default(dout, dlse, out, lse, list(needs), *problem[:_SCALARS])
    for place, needed, gradient in zip(DIFFERENTIABLE, needs, results):
        gradients[place] = gradient if needed else None
    return tuple(gradients)


class _Attention(torch.autograd.Function):
    """The operator `flashwave::forward` without the dispatcher."""

    # With a setup_context of its own torch would bind the arguments by inspect.signature, 50 microseconds a call.
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple:  # type: ignore[override]
        results = forward(Problem(*inputs[:_SCALARS]), probs=inputs[_SCALARS])
        if results[2] is not None:
            ctx.mark_non_differentiable(results[2])
        save(ctx, inputs, results)
        return results

    backward = staticmethod(once_differentiable(_differentiate))


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_transform = torch._C._functorch.peek_interpreter_stack


def is_plain(*tensors: torch.Tensor) -> bool:
    """Whether memory can be handed to a kernel: nothing traces, transforms or wraps these tensors."""
    if torch.compiler.is_compiling() or _dispatch_modes() > 0 or _function_transform() is not None:
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES:
            return False
    return True


def needs_gradient(problem: Problem) -> bool:
    if not torch.is_grad_enabled():
        return False
    q, k, v = problem[:3]
    if q.requires_grad or k.requires_grad or v.requires_grad:
        return True
    return any([term is not None and term.requires_grad for term in problem[9:12]])


def attend(problem: Problem, out: torch.Tensor | None = None, lse: bool = True, probs: bool = False) -> Outputs:
    """The differentiable attention: (out, lse, probs), the last two only sure to be there if wanted.

    lse is -inf in rows that see nothing; probs has no gradient.
    """
    if not is_plain(problem.q):
        return _attend_traced(problem, out, lse or needs_gradient(problem), probs)
    if needs_gradient(problem):
        if out is not None:
            raise InvalidArgument("out cannot be used when an input requires a gradient")
        if problem.k_new is not None:
            raise InvalidArgument("k cannot be appended to a cache when an input requires a gradient")
        return _Attention.apply(*problem[:_SCALARS], probs)
    return forward(problem, out, lse, probs)


def _attend_traced(problem: Problem, out: torch.Tensor | None, with_lse: bool, probs: bool) -> Outputs:
    """With the same wish for the lse as in eager mode: kernels that need not compute it may round otherwise."""
    if problem.k_new is not None:
        result, lse = torch.ops.flashwave.forward_append.default(*problem, with_lse)
        matrix = None
    else:
        result, lse, matrix = torch.ops.flashwave.forward.default(*problem[:_SCALARS], probs, with_lse)
    if out is not None:
        out.copy_(result)
        result = out
    return result, lse, matrix if probs else None


# ----------------------------------------------------------------------------------------------------------- operators

_library = torch.library.Library("flashwave", "FRAGMENT")

_PROBLEM = (
    "Tensor q, Tensor{a} k, Tensor{b} v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, "
    "Tensor? leftpad_k, Tensor? cache_batch_idx, Tensor? block_table, Tensor? alibi_slopes, Tensor? bias, "
    "Tensor? sinks, Tensor? rng_state, SymInt max_seqlen_q, SymInt max_seqlen_k, float? softmax_scale, bool causal, "
    "SymInt window_left, SymInt window_right, float softcap, float dropout_p, int num_splits, bool deterministic"
)
_READ, _WRITTEN = _PROBLEM.format(a="", b=""), _PROBLEM.format(a="(a!)", b="(b!)")
_APPEND = "Tensor? k_new, Tensor? v_new, Tensor? rotary_cos, Tensor? rotary_sin, bool rotary_interleaved"

# An lse or a matrix that is not wanted is a tensor without elements.
_library.define(f"forward({_READ}, bool return_probs, bool return_lse=True) -> (Tensor, Tensor, Tensor)")
_library.define(
    f"backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool[] needs, {_READ}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(f"forward_append({_WRITTEN}, {_APPEND}, bool return_lse=True) -> (Tensor, Tensor)")


def _absent(like: torch.Tensor) -> torch.Tensor:
    return like.new_empty((0,))


def _forward_operator(*arguments: Any) -> tuple:
    problem = Problem(*arguments[:_SCALARS])
    with_probs, with_lse = (*arguments[_SCALARS:], True)[:2]
    out, lse, matrix = forward(problem, None, with_lse, with_probs)
    absent = out.new_empty((0,), dtype=torch.float32)
    lse = _no_lse(problem) if lse is None or not with_lse else lse
    return out, lse, absent if matrix is None else matrix


def _no_lse(problem: Problem) -> torch.Tensor:
    exact = torch.float64 if problem.q.dtype == torch.float64 else torch.float32
    return problem.q.new_empty((0,), dtype=exact)


def _forward_fake(*arguments: Any) -> tuple:
    problem = Problem(*arguments[:_SCALARS])
    with_probs, with_lse = (*arguments[_SCALARS:], True)[:2]
    shapes.check(problem)
    q, v = problem.q, problem.v
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = _no_lse(problem)
    if with_lse:
        lse = q.new_empty(native.lse_shape(problem), dtype=lse.dtype)
    matrix = q.new_empty(native.probs_shape(problem) if with_probs else (0,), dtype=torch.float32)
    return out, lse, matrix


def _backward_operator(dout: Any, dlse: Any, out: Any, lse: Any, needs: list, *arguments: Any) -> tuple:
    problem = Problem(*arguments)
    gradients = backward(problem, dout, dlse, out, lse, tuple(needs), chosen())
    return tuple([_absent(out) if gradient is None else gradient for gradient in gradients])


def _backward_fake(dout: Any, dlse: Any, out: Any, lse: Any, needs: list, *arguments: Any) -> tuple:
    return tuple(
        [
            arguments[place].new_empty(arguments[place].shape) if needed else _absent(out)
            for place, needed in zip(DIFFERENTIABLE, needs)
        ]
    )


def _append_operator(*arguments: Any) -> tuple:
    problem = Problem(*arguments[: len(Problem._fields)])
    with_lse = (*arguments[len(Problem._fields) :], True)[0]
    out, lse, _ = forward(problem, None, with_lse)
    return out, _no_lse(problem) if lse is None or not with_lse else lse


def _append_fake(*arguments: Any) -> tuple:
    with_lse = (*arguments[len(Problem._fields) :], True)[0]
    return _forward_fake(*arguments[:_SCALARS], False, with_lse)[:2]


assert len(FORWARD_FIELDS) + len(APPEND_FIELDS) == len(Problem._fields)
for _name, _operator, _fake in (
    ("forward", _forward_operator, _forward_fake),
    ("backward", _backward_operator, _backward_fake),
    ("forward_append", _append_operator, _append_fake),
):
    _library.impl(_name, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flashwave::{_name}", _fake, lib=_library)
torch.library.register_autograd("flashwave::forward", _differentiate, setup_context=save, lib=_library)

"""torch's own attention operators, computed by flashwave: `register_with_torch`, `activate`, `restore`.

Nothing happens on import. `activate` puts kernels of ours in the place of torch's for CPUs
(`_scaled_dot_product_flash_attention_for_cpu`: every scaled_dot_product_attention that torch does not compute by its
formula, masks included) and, where torch knows how (2.11 and newer), for GPUs (the flash operators, ROCm's, too).
Gradients stay torch's, whose formulas call the backward operators, which are ours as well. What we do not take goes to
the kernel that was there before.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable

import torch

from .attention import draw_rng_state
from .errors import Unsupported
from .operators import ops
from .problem import FORWARD_FIELDS, Problem
from .sdpa import bias_of, top_left

Tensor = torch.Tensor

NAME = "flashwave"
_SCALARS = len(FORWARD_FIELDS)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


# -------------------------------------------------------------------------------------------------------- computing it


def _problem(q: Tensor, k: Tensor, v: Tensor, scale: float | None, **rest: Any) -> Problem:
    """Of (batch, tokens, heads, dim)."""
    lengths = {"max_seqlen_q": q.shape[1], "max_seqlen_k": k.shape[1]} if q.dim() == 4 else {}
    deterministic = torch.are_deterministic_algorithms_enabled()
    return Problem(q, k, v, softmax_scale=scale, deterministic=deterministic, **{**lengths, **rest})


def _forward(problem: Problem) -> tuple[Tensor, Tensor]:
    out, lse, _ = ops._forward.default(*problem[:_SCALARS], True, False)
    return out, lse


def _backward(problem: Problem, grad_out: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return ops._backward.default(grad_out, None, out, lse, 7, *problem[:_SCALARS])[:3]


def _by_rows(*tensors: Tensor) -> list[Tensor]:
    """(batch, heads, tokens, dim) to (batch, tokens, heads, dim), and back."""
    return [tensor.transpose(1, 2) for tensor in tensors]


class _Masked:
    """A call with torch's is_causal, whose first query sees the first key."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, **rest: Any) -> None:
        self.shape = k.shape, v.shape
        self.cut = False
        if is_causal:
            keep, mask = top_left(q.shape[1], k.shape[1])
            self.cut = keep < k.shape[1]
            if self.cut:
                k, v = k[:, :keep], v[:, :keep]
            rest["causal"], (_, rest["window_right"]) = mask.get("causal", False), mask.get("window", (-1, -1))
        self.problem = _problem(q, k, v, scale, **rest)

    def gradients(self, grad_out: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = _backward(self.problem, grad_out, out, lse)
        if self.cut:  # keys that nobody saw
            missing = self.shape[0][1] - dk.shape[1]
            dk, dv = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing)) for x in (dk, dv))
        return dq, dk, dv


def _mask_as_bias(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """attn_mask, of two to four dimensions, as a problem takes it. q: (batch, heads, tokens, dim)."""
    if mask is None:
        return None
    bias = bias_of(mask, q)
    bias = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    return bias if bias.dtype in (q.dtype, torch.float32) else bias.to(torch.float32)


# ---------------------------------------------------------------------------------------------------------------- CPUs


def _takes(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> bool:
    return (
        q.dtype in _DTYPES
        and q.dim() == k.dim() == v.dim() == 4
        and k.dtype == v.dtype == q.dtype
        and dropout_p == 0
        and 0 not in q.shape
        and 0 not in k.shape
        and q.shape[1] % k.shape[1] == 0
        and max(q.shape[-1], v.shape[-1]) <= 512
    )


def cpu_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor] | None:
    """aten::_scaled_dot_product_flash_attention_for_cpu; None where the kernel before is to compute it."""
    if not _takes(query, key, value, dropout_p):
        return None
    call = _Masked(*_by_rows(query, key, value), is_causal, scale, bias=_mask_as_bias(attn_mask, query))
    out, lse = _forward(call.problem)
    return out.transpose(1, 2), lse


def cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward."""
    if not _takes(query, key, value, dropout_p) or logsumexp.dtype != torch.float32:
        return None
    call = _Masked(*_by_rows(query, key, value), is_causal, scale, bias=_mask_as_bias(attn_mask, query))
    o, do = _by_rows(out, grad_out)
    return tuple(_by_rows(*call.gradients(do, o, logsumexp)))


# ---------------------------------------------------------------------------------------------------------------- GPUs


def _state(rng_state: Tensor | None, dropout_p: float, q: Tensor) -> Tensor | None:
    """The seed and offset of dropout as operators of ours take them, from the two of torch's that we gave it."""
    if dropout_p == 0:
        return None
    return draw_rng_state(q) if rng_state is None else rng_state.view(torch.int64)


def _auxiliary(q: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """rng_state, unused and debug_attn_mask, as torch returns them."""
    if state is None:
        rng_state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    else:
        rng_state = state.to(q.device).view(torch.uint64)
    return rng_state, torch.zeros((), dtype=torch.uint64, device=q.device), q.new_empty(0)


def gpu_sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple | None:
    """aten::_scaled_dot_product_flash_attention."""
    if not _takes(query, key, value, 0.0) or return_debug_mask:
        return None
    state = _state(None, dropout_p, query)
    call = _Masked(*_by_rows(query, key, value), is_causal, scale, dropout_p=dropout_p, rng_state=state)
    out, lse = _forward(call.problem)
    rest = (None, None, query.shape[2], key.shape[2], *_auxiliary(query, state))
    return (out.transpose(1, 2), lse, *rest)


def gpu_sdpa_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """aten::_scaled_dot_product_flash_attention_backward."""
    if not _takes(query, key, value, 0.0) or cum_seq_q is not None:
        return None
    state = _state(philox_seed, dropout_p, query)
    call = _Masked(*_by_rows(query, key, value), is_causal, scale, dropout_p=dropout_p, rng_state=state)
    o, do = _by_rows(out, grad_out)
    return tuple(_by_rows(*call.gradients(do, o, logsumexp.contiguous())))


def _takes_rows(q: Tensor, k: Tensor, v: Tensor, packed: bool, paged: bool) -> bool:
    """Of (batch, tokens, heads, dim), or packed."""
    return (
        q.dtype in _DTYPES
        and k.dtype == v.dtype == q.dtype
        and q.dim() == (3 if packed else 4)
        and k.dim() == (4 if paged or not packed else 3)
        and q.shape[-2] % max(k.shape[-2], 1) == 0
        and max(q.shape[-1], v.shape[-1]) <= 512
    )


def _rows_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool,
    scale: float | None,
    window_size_left: int | None,
    window_size_right: int | None,
    **rest: Any,
) -> Problem:
    sides = [-1 if side is None else int(side) for side in (window_size_left, window_size_right)]
    lengths = {"cu_seqlens_q": cum_seq_q, "cu_seqlens_k": cum_seq_k}
    if cum_seq_q is not None:
        lengths = {**lengths, "max_seqlen_q": int(max_q), "max_seqlen_k": int(max_k)}
    mask = {"causal": is_causal, "window_left": max(sides[0], -1), "window_right": max(sides[1], -1)}
    return _problem(q, k, v, scale, **lengths, **mask, **rest)


def gpu_rows_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple | None:
    """aten::_flash_attention_forward, whose masks are aligned to the last query and the last key, as ours are."""
    packed, paged = cum_seq_q is not None, block_table is not None
    if return_debug_mask or not _takes_rows(query, key, value, packed, paged):
        return None
    if packed and torch.version.hip is not None:
        return None  # its log-sum-exp is padded there
    state = _state(None, dropout_p, query)
    problem = _rows_problem(
        query,
        key,
        value,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        is_causal,
        scale,
        window_size_left,
        window_size_right,
        seqused_k=seqused_k,
        alibi_slopes=alibi_slopes,
        block_table=block_table,
        num_splits=int(num_splits or 0),
        dropout_p=dropout_p,
        rng_state=state,
    )
    if paged and not packed:
        problem = problem._replace(max_seqlen_k=key.shape[1] * block_table.shape[1])
    return (*_forward(problem), *_auxiliary(query, state))


def gpu_rows_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """aten::_flash_attention_backward."""
    if not _takes_rows(query, key, value, cum_seq_q is not None, False):
        return None
    if cum_seq_q is not None and torch.version.hip is not None:
        return None
    state = _state(rng_state, dropout_p, query)
    offsets = cum_seq_q, cum_seq_k, max_q, max_k
    sides = window_size_left, window_size_right
    problem = _rows_problem(query, key, value, *offsets, is_causal, scale, *sides, dropout_p=dropout_p, rng_state=state)
    return _backward(problem, grad_out, out, logsumexp.contiguous())


# --------------------------------------------------------------------------------------------------------- registering

_CPU_OPERATORS = {
    "_scaled_dot_product_flash_attention_for_cpu": cpu_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": cpu_backward,
}
_GPU_OPERATORS = {
    "_scaled_dot_product_flash_attention": gpu_sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": gpu_sdpa_backward,
    "_flash_attention_forward": gpu_rows_forward,
    "_flash_attention_backward": gpu_rows_backward,
}


class _Kernels:
    """Kernels of ours in the place of torch's, as long as it is kept."""

    def __init__(self, operators: dict[str, Callable], key: str) -> None:
        self._library: Any = torch.library.Library("aten", "IMPL", key)
        for name, function in operators.items():
            before = torch.library.get_kernel(f"aten::{name}", key)
            with warnings.catch_warnings():  # that a kernel is overridden is what was asked for
                warnings.simplefilter("ignore", UserWarning)
                self._library.impl(name, self._replacing(before, function), key, with_keyset=True)

    @staticmethod
    def _replacing(before: Any, function: Callable) -> Callable:
        def kernel(keys: Any, *arguments: Any, **options: Any) -> Any:
            results = function(*arguments, **options)
            return before.call_boxed(keys, *arguments, **options) if results is None else results

        return kernel

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None


class _Active:
    """What `activate` did, for `restore` to undo."""

    cpu: _Kernels | None = None


def _gpu_kernels() -> _Kernels:
    return _Kernels(_GPU_OPERATORS, "CUDA")  # ROCm's key as well


def register_with_torch() -> None:
    """Makes flashwave known to torch: torch.nn.attention.activate_flash_attention_impl("flashwave") then takes it.

    That is about GPUs, and torch 2.11 or newer. `activate` does it, and the CPU's operators, at once.
    """
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl"):
        raise Unsupported(f"torch {torch.__version__} takes no other flash attention: 2.11 is the first that does")
    attention.register_flash_attention_impl(NAME, register_fn=_gpu_kernels)


def activate() -> None:
    """From here on flashwave computes torch's attention, on CPUs and GPUs, for every program in this process.

    That is scaled_dot_product_attention wherever torch does not compute it by its formula, and what is built on it:
    nn.MultiheadAttention, transformers' "sdpa", torch's context parallelism. May be called again.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise Unsupported(
            f"torch {torch.__version__} does not give away the kernels that would be replaced; use flashwave.sdpa, "
            "which takes the arguments of scaled_dot_product_attention on any torch"
        )
    if _Active.cpu is None:
        _Active.cpu = _Kernels(_CPU_OPERATORS, "CPU")
    if torch.backends.cuda.is_built() and hasattr(torch.nn.attention, "register_flash_attention_impl"):
        register_with_torch()
        torch.nn.attention.activate_flash_attention_impl(NAME)


def restore() -> None:
    """torch's own kernels again, or those that were there before `activate`."""
    if _Active.cpu is not None:
        _Active.cpu.remove()
        _Active.cpu = None
    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)
    if current() == NAME:
        torch.nn.attention.restore_flash_attention_impl()


def is_active() -> bool:
    return _Active.cpu is not None

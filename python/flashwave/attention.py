"""`attention`: every feature of the library under one name, for torch tensors, NumPy arrays and DLPack objects."""

from __future__ import annotations

from typing import Any

import torch

from . import settings
from .autograd import attend, is_plain
from .backends.native import calls as native
from .errors import InvalidArgument
from .problem import Problem

Tensor = torch.Tensor
LEAST_DROPOUT = 2.0**-16  # what the mask's 16 bits can tell from 0; programs ask for less to get the log-sum-exp


# --------------------------------------------------------------------------------------------- arguments to a problem


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that an enclosing torch.autocast asks for; float64 is left alone, as torch does."""
    if not (torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled()):  # the cheap question first
        return tensors
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind) or tensors[0].dtype == torch.float64:
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple([tensor.to(dtype) for tensor in tensors])


def index_tensor(tensor: Tensor | None) -> Tensor | None:
    """Lengths, offsets and tables as the library reads them: int32 without gaps."""
    if tensor is None or (tensor.dtype == torch.int32 and tensor.is_contiguous()):
        return tensor
    return tensor.to(torch.int32).contiguous()


def _float32(tensor: Tensor | None, q: Tensor) -> Tensor | None:
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    return None if tensor is None else tensor.to(exact)


def _bias4d(bias: Tensor, q: Tensor) -> Tensor:
    if not bias.is_floating_point():
        raise InvalidArgument(f"bias must be a floating-point tensor (use -inf to hide a key), got {bias.dtype}")
    if bias.dim() > 4:
        raise InvalidArgument(f"bias must have at most 4 dimensions, got {bias.dim()}")
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    bias = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    if bias.dtype not in (q.dtype, exact):
        bias = bias.to(exact)
    if bias.requires_grad and any(n > 1 and stride == 0 for n, stride in zip(bias.shape, bias.stride())):
        bias = bias.contiguous()  # every element has a gradient of its own
    return bias


_STREAM = 0x666C617368776176  # sets the keys of these random numbers apart from those of torch's own operations


def _int64(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def draw_rng_state(q: Tensor) -> Tensor:
    """Seed and offset of one dropout, from torch's generator of q's device: torch.manual_seed repeats it.

    A GPU's generator is a seed and an offset on the host, which are taken without a word to the GPU. Where they are
    known only later, when a graph that is captured or compiled runs, the numbers are drawn on the device.
    """
    if q.is_cuda and is_plain(q) and not torch.cuda.is_current_stream_capturing():
        generator = torch.cuda.default_generators[q.device.index]
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # torch counts in blocks of four
        return torch.tensor([_int64(generator.initial_seed() ^ _STREAM), offset], dtype=torch.int64)
    return torch.randint(-(1 << 63), (1 << 63) - 1, (2,), dtype=torch.int64, device=q.device)


def make_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    rng_state: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int = 0,
) -> Problem:
    """The problem that the arguments mean: defaults resolved, small tensors in the library's types."""
    if alibi_slopes is not None or sinks is not None or bias is not None:
        alibi_slopes, sinks = _float32(alibi_slopes, q), _float32(sinks, q)
        bias = None if bias is None else _bias4d(bias, q)
    if 0.0 < dropout_p < LEAST_DROPOUT:
        dropout_p = 0.0
    if dropout_p > 0.0 and rng_state is None:
        rng_state = draw_rng_state(q)
    if max_seqlen_q is None:
        max_seqlen_q = q.shape[1]
    if max_seqlen_k is None:
        max_seqlen_k = k.shape[1] if block_table is None else k.shape[1] * block_table.shape[-1]
    left, right = window_size
    return Problem(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        leftpad_k,
        cache_batch_idx,
        block_table,
        alibi_slopes,
        bias,
        sinks,
        rng_state,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        causal,
        left if left >= 0 else -1,
        right if right >= 0 else -1,
        softcap,
        dropout_p,
        num_splits,
        deterministic or torch.are_deterministic_algorithms_enabled() or (not q.is_cpu and settings.deterministic()),
    )


# ----------------------------------------------------------------------------------------------------------- attention


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    bias: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    rng_state: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    cache_batch_idx: Any = None,
    block_table: Any = None,
    num_splits: int = 0,
    deterministic: bool = False,
    return_lse: bool = False,
    return_probs: bool = False,
    out: Any = None,
    device: str | None = None,
) -> Any:
    """softmax(q k^T) v with everything docs/semantics.md describes. Floating-point inputs, and lse, have gradients.

    q (batch, seqlen_q, heads, dim), k and v (batch, seqlen_k, heads_k, dim); packed (total, heads, dim) with
    cu_seqlens_*; k and v (pages, page_size, heads_k, dim) with block_table. Returns out, or a tuple of out, lse
    (-inf where a row sees nothing) and probs as asked for. rng_state is (seed, offset) as an int64 tensor; without it
    dropout draws one from torch's generator. device names a device of the library ("emu:gfx942") through which CPU
    tensors are staged. NumPy arrays and DLPack objects go to `flashwave.arrays.attention`; rng_state is (0, 0) for them
    if not given.
    """
    if not isinstance(q, torch.Tensor):
        from . import arrays

        seed, offset = (0, 0) if rng_state is None else (int(number) for number in rng_state)
        return arrays.attention(
            q,
            k,
            v,
            causal=causal,
            window=window,
            softmax_scale=softmax_scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            bias=bias,
            sinks=sinks,
            dropout_p=dropout_p,
            seed=seed,
            offset=offset,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            seqused_k=seqused_k,
            leftpad_k=leftpad_k,
            cache_batch_idx=cache_batch_idx,
            block_table=block_table,
            num_splits=num_splits,
            deterministic=deterministic,
            return_lse=return_lse,
            return_probs=return_probs,
            out=out,
            device=device or "cpu",
        )
    if window[0] < -1 or window[1] < -1:
        raise InvalidArgument(f"window must be (left, right), each at least -1 (-1: no limit), got {tuple(window)}")
    if cu_seqlens_q is not None and max_seqlen_q is None:
        raise InvalidArgument("max_seqlen_q must be given with cu_seqlens_q")
    if cu_seqlens_k is not None and max_seqlen_k is None:
        raise InvalidArgument("max_seqlen_k must be given with cu_seqlens_k")
    problem = make_problem(
        *autocast(q, k, v),
        dropout_p,
        softmax_scale,
        causal,
        window,
        softcap,
        alibi_slopes,
        deterministic,
        bias,
        sinks,
        rng_state,
        index_tensor(cu_seqlens_q),
        index_tensor(cu_seqlens_k),
        max_seqlen_q,
        max_seqlen_k,
        index_tensor(seqused_k),
        index_tensor(leftpad_k),
        index_tensor(cache_batch_idx),
        index_tensor(block_table),
        num_splits,
    )
    if device is not None:
        from .backends.native.staging import staged_attend

        results = staged_attend(device, problem, out, return_probs)
    else:
        results = attend(problem, checked_out(out, problem), return_lse, return_probs)
    wanted = [results[0]]
    if return_lse:
        wanted.append(results[1])
    if return_probs:
        wanted.append(results[2])
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def checked_out(out: Tensor | None, problem: Problem) -> Tensor | None:
    """out if it can take the result."""
    if out is None:
        return None
    shape = (*problem.q.shape[:-1], problem.v.shape[-1])
    if tuple(out.shape) != shape or out.dtype != problem.q.dtype or out.device != problem.q.device:
        raise InvalidArgument(
            f"out must be {shape}, {problem.q.dtype}, on {problem.q.device}; "
            f"got {tuple(out.shape)}, {out.dtype}, on {out.device}"
        )
    return out


def explain(q: Tensor, k: Tensor, v: Tensor, *, backward: bool = False, json: bool = False, **arguments: Any) -> str:
    """Which kernel `attention` would run on these arguments, and why not the ones before it."""
    return native.explain(make_problem(*autocast(q, k, v), **arguments), backward, json)

"""`attention`: every feature of the library under one name, for torch tensors, NumPy arrays and DLPack objects."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch

from . import settings
from .autograd import attend
from .backends.native import calls as native
from .errors import InvalidArgument
from .problem import Problem

Tensor = torch.Tensor
LEAST_DROPOUT = 2.0**-16  # what the mask's 16 bits can tell from 0; programs ask for less to get the log-sum-exp
_any_autocast = torch._C._is_any_autocast_enabled
_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._get_tracing_state


# --------------------------------------------------------------------------------------------- arguments to a problem


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that an enclosing torch.autocast asks for; float64 is left alone, as torch does."""
    if not (_is_compiling() or torch._C._is_any_autocast_enabled()):  # the cheap question first
        return tensors
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind) or tensors[0].dtype == torch.float64:
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple([tensor.to(dtype) for tensor in tensors])


def number(name: str, value: Any) -> float:
    """A scalar argument, read now: of a tensor, whose value may change, and which gets no gradient."""
    if type(value) is float or isinstance(value, (int, torch.SymFloat, torch.SymInt)):
        return value
    if isinstance(value, Tensor) and value.requires_grad:
        raise InvalidArgument(f"{name} must be a number: it has no gradient, and the tensor given requires one")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"{name} must be a number, got {_described(value)}") from None


def whole_number(name: str, value: Any) -> int:
    if isinstance(value, (int, torch.SymInt)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} must be a whole number, got {_described(value)}") from None


_FARTHEST = 1 << 62  # of a window: past every key, and inside 64 bits


def window_sides(name: str, window: Any) -> tuple[int, int]:
    """(left, right), -1 where a side has no limit."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} must be (left, right), got {_described(window)}") from None
    left, right = whole_number(f"{name}[0]", left), whole_number(f"{name}[1]", right)
    if left > _FARTHEST or right > _FARTHEST:
        raise InvalidArgument(f"{name} must be (left, right), each at most 2**62 (-1: no limit), got {(left, right)}")
    return left if left >= 0 else -1, right if right >= 0 else -1


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def index_tensor(name: str, tensor: Tensor | None) -> Tensor | None:
    """Lengths, offsets and tables in the library's type, int32. Others are converted, and never cut."""
    if tensor is None or (type(tensor) is Tensor and tensor.dtype is torch.int32):
        return tensor
    check_tensor(name, tensor)
    if tensor.dtype == torch.int32:
        return tensor
    if tensor.dtype not in _INTEGERS:
        raise InvalidArgument(f"{name} must hold integers, got {tensor.dtype}")
    if tensor.dtype == torch.int64:
        readable = tensor.is_cpu and type(tensor) is Tensor and not _is_compiling() and not _is_tracing()
        if readable and tensor.numel() > 0:
            least, most = (int(number) for number in tensor.aminmax())
            if least < _LEAST or most > _MOST:
                raise InvalidArgument(f"{name} must fit into int32, got {most if most > _MOST else least}")
        else:  # asking would wait for a GPU; what is out of range stays so
            tensor = tensor.clamp(_LEAST, _MOST)
    return tensor.to(torch.int32)


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise InvalidArgument(f"{name} must be a torch tensor, got {type(value).__name__}")


def check_tensors(**named: Any) -> None:
    """After something failed: what is given is a tensor as a rule."""
    for name, value in named.items():
        check_tensor(name, value)


def _float32(name: str, tensor: Tensor | None, q: Tensor) -> Tensor | None:
    if tensor is None:
        return None
    check_tensor(name, tensor)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InvalidArgument(f"{name} must hold floating-point numbers, got {tensor.dtype}")
    return tensor.to(torch.float64 if q.dtype == torch.float64 else torch.float32)


def _bias4d(bias: Tensor, q: Tensor) -> Tensor:
    check_tensor("bias", bias)
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


def _is_plain(q: Tensor) -> bool:
    """Whether numbers can be taken from torch's generator on the host: nothing traces, transforms or wraps q."""
    if _is_compiling() or _is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return not torch._C._are_functorch_transforms_active() and type(q) in (Tensor, torch.nn.Parameter)


def draw_rng_state(q: Tensor) -> Tensor:
    """Seed and offset of one dropout, from torch's generator of q's device: torch.manual_seed repeats it.

    A GPU's generator is a seed and an offset on the host, which are read without waiting for the GPU. Where they are
    known only later, when a graph that is captured or compiled runs, the numbers are drawn on the device.
    """
    if q.is_cuda and _is_plain(q) and not torch.cuda.is_current_stream_capturing():
        generator = torch.cuda.default_generators[q.device.index]
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # torch counts in blocks of four
        return torch.tensor([_int64(generator.initial_seed() ^ _STREAM), offset], dtype=torch.int64, device="cpu")
    return torch.randint(-(1 << 63), (1 << 63) - 1, (2,), dtype=torch.int64, device=q.device)


def _checked_state(rng_state: Any) -> Tensor:
    check_tensor("rng_state", rng_state)
    if rng_state.dtype == torch.uint64:
        return rng_state.view(torch.int64)
    if rng_state.dtype != torch.int64:
        raise InvalidArgument(f"rng_state must be int64, (seed, offset), got {rng_state.dtype}")
    return rng_state


def dropout_of(dropout_p: Any) -> float:
    dropout_p = number("dropout_p", dropout_p)
    return 0.0 if 0.0 < dropout_p < LEAST_DROPOUT else dropout_p


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
    check_tensors(q=q, k=k, v=v)
    if alibi_slopes is not None or sinks is not None or bias is not None:
        alibi_slopes, sinks = _float32("alibi_slopes", alibi_slopes, q), _float32("sinks", sinks, q)
        bias = None if bias is None else _bias4d(bias, q)
    dropout_p = dropout_of(dropout_p)
    if rng_state is not None:
        rng_state = _checked_state(rng_state)
    elif dropout_p > 0.0:
        rng_state = draw_rng_state(q)
    block_table = index_tensor("block_table", block_table)
    if max_seqlen_q is None:
        max_seqlen_q = q.shape[1] if q.dim() > 1 else 0
    if max_seqlen_k is None:
        keys = k.shape[1] if k.dim() > 1 else 0
        max_seqlen_k = keys if block_table is None else keys * block_table.shape[-1]
    return Problem(
        q,
        k,
        v,
        index_tensor("cu_seqlens_q", cu_seqlens_q),
        index_tensor("cu_seqlens_k", cu_seqlens_k),
        index_tensor("seqused_k", seqused_k),
        index_tensor("leftpad_k", leftpad_k),
        index_tensor("cache_batch_idx", cache_batch_idx),
        block_table,
        alibi_slopes,
        bias,
        sinks,
        rng_state,
        whole_number("max_seqlen_q", max_seqlen_q),
        whole_number("max_seqlen_k", max_seqlen_k),
        None if softmax_scale is None else number("softmax_scale", softmax_scale),
        bool(causal),
        *window_sides("window_size", window_size),
        number("softcap", softcap),
        dropout_p,
        whole_number("num_splits", num_splits),
        deterministic or settings.is_deterministic(q),
    )


# ------------------------------------------------------------------------------------------------ calls without options


def mask_of(softmax_scale: Any, causal: bool, window_size: Any, softcap: Any) -> tuple:
    """(softmax_scale, causal, window_left, window_right, softcap), as the operators take them."""
    if window_size == (-1, -1):
        left = right = -1
    else:
        left, right = window_sides("window_size", window_size)
    if softmax_scale is not None and type(softmax_scale) is not float:
        softmax_scale = number("softmax_scale", softmax_scale)
    if type(softcap) is not float:
        softcap = number("softcap", softcap)
    if causal is not True and causal is not False:
        causal = bool(causal)
    return softmax_scale, causal, left, right, softcap


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
        return _of_arrays(dict(locals()))
    sides = window_sides("window", window)
    if any(side < -1 for side in window):
        raise InvalidArgument(f"window must be (left, right), each at least -1 (-1: no limit), got {tuple(window)}")
    if cu_seqlens_q is not None and max_seqlen_q is None:
        raise InvalidArgument("max_seqlen_q must be given with cu_seqlens_q")
    if cu_seqlens_k is not None and max_seqlen_k is None:
        raise InvalidArgument("max_seqlen_k must be given with cu_seqlens_k")
    mask = dropout_p, softmax_scale, causal, sides, softcap, alibi_slopes, deterministic, bias, sinks, rng_state
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, leftpad_k
    problem = make_problem(*autocast(q, k, v), *mask, *lengths, cache_batch_idx, block_table, num_splits)
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


def _of_arrays(given: dict[str, Any]) -> Any:
    """NumPy arrays and DLPack objects, which have no generator to draw from."""
    from . import arrays

    state = given.pop("rng_state")
    given["seed"], given["offset"] = (0, 0) if state is None else (int(number) for number in state)
    given["device"] = given["device"] or "cpu"
    return arrays.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def checked_out(out: Tensor | None, problem: Problem) -> Tensor | None:
    """out if it can take the result."""
    if out is None:
        return None
    check_tensor("out", out)
    shape = (*problem.q.shape[:-1], problem.v.shape[-1])
    if tuple(out.shape) != shape or out.dtype != problem.q.dtype or out.device != problem.q.device:
        raise InvalidArgument(
            f"out must be {shape}, {problem.q.dtype}, on {problem.q.device}; "
            f"got {tuple(out.shape)}, {out.dtype}, on {out.device}"
        )
    return out


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: tuple[int, int] = (-1, -1),
    backward: bool = False,
    json: bool = False,
    **arguments: Any,
) -> str:
    """Which kernel of the library `attention` would run on these arguments, and why not the ones before it.

    Takes the arguments of `attention` (flash-attn's `window_size` is understood, too); backward asks for that of the
    gradients, json for one JSON object instead of text. Nothing is computed.
    """
    names = inspect.signature(attention).parameters
    unknown = sorted(name for name in arguments if name not in names and name != "window_size")
    if unknown:
        raise InvalidArgument(f"{unknown[0]} is not an argument of attention, which has {', '.join(names)}")
    device = arguments.pop("device", None)
    for name in ("return_lse", "return_probs", "out"):  # say nothing about the problem
        arguments.pop(name, None)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
    problem = make_problem(*autocast(q, k, v), **{"window_size": window, **arguments})
    return native.explain(problem, backward, json, device)

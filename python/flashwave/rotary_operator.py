"""One rotary embedding on torch tensors: which code computes it, its gradient, and the operator `flashwave::rotary`.

Tensors go to the library's `fw_rotary` where it has a kernel for their device, else through PyTorch operations; both
compute in fp32 and round once, and on CPUs they give the same bits. Every derivative of a rotation is a rotation.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_uint32, c_void_p
from typing import Any, NamedTuple

import torch

from . import _library as fw
from .autograd import is_differentiated, tell_autograd
from .backends.native import calls as native
from .errors import InvalidArgument, Unsupported
from .operators import absent, as_text, library, ops, raise_for

Tensor = torch.Tensor

_MOST_DIM = 512  # of the library
_INTERLEAVED, _CONJUGATE = fw.ROTARY_INTERLEAVED, 8


class _Struct(ctypes.Structure):
    """fw_rotary_embedding."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("batch", c_int64),
        ("seqlen", c_int64),
        ("heads", c_int64),
        ("dim", c_int64),
        ("total", c_int64),
        ("rotary_seqlen", c_int64),
        ("rotary_dim", c_int64),
        ("seqlen_offset", c_int64),
        ("x", fw.Tensor),
        ("out", fw.Tensor),
        ("cos", fw.Tensor),
        ("sin", fw.Tensor),
        ("seqlen_offsets", c_void_p),
        ("cu_seqlens", c_void_p),
    ]


class Turn(NamedTuple):
    """What a tensor is turned by. Its fields, in order, follow x in the arguments of the operator."""

    cos: Tensor  # (positions, rotary_dim / 2)
    sin: Tensor
    cos_k: Tensor | None  # of the second span, if not the same
    sin_k: Tensor | None
    offsets: Tensor | None  # (batch), added to offset
    cu_seqlens: Tensor | None
    offset: int
    max_seqlen: int | None
    interleaved: bool
    conjugate: bool
    # Of the heads that are turned, or of q, k and v in a 5-D tensor; a second span where count_k > 0.
    first: int
    count: int
    first_k: int = 0
    count_k: int = 0

    @property
    def spans(self) -> tuple[int, ...]:
        """first and count, and those of the second span."""
        return self[10:12] if self.count_k == 0 else self[10:14]


# ---------------------------------------------------------------------------------------------------------------- rules


def _rule(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidArgument(message)


def _check_angles(x: Tensor, cos: Tensor, sin: Tensor, names: tuple[str, str]) -> None:
    for name, tensor in zip(names, (cos, sin)):
        _rule(
            tensor.dim() == 2,
            f"{name} must be (positions, rotary_dim / 2), got a tensor of shape {tuple(tensor.shape)}",
        )
        _rule(tensor.is_floating_point(), f"{name} must hold floating point numbers, got {tensor.dtype}")
        _rule(tensor.device == x.device, f"{name} must be on the device of x, {x.device}, got {tensor.device}")
    _rule(cos.shape == sin.shape, f"{names[1]} must have the shape of {names[0]}, {tuple(cos.shape)}")
    _rule(
        2 * cos.shape[1] <= x.shape[-1],
        f"{names[0]} must have at most head_dim / 2 columns, head_dim is {x.shape[-1]}, got {cos.shape[1]}",
    )


def _check(x: Tensor, turn: Turn) -> None:
    """Shapes, dtypes and devices; the values of index tensors are checked by the library, where it can read them."""
    _rule(x.is_floating_point(), f"x must hold floating point numbers, got {x.dtype}")
    _check_angles(x, turn.cos, turn.sin, ("cos", "sin"))
    if turn.cos_k is not None and turn.sin_k is not None:
        _check_angles(x, turn.cos_k, turn.sin_k, ("cos_k", "sin_k"))
        _rule(
            turn.cos_k.shape[1] == turn.cos.shape[1] and turn.cos_k.dtype == turn.cos.dtype,
            "cos_k must have the columns and the dtype of cos",
        )
    cu_seqlens, offsets = turn.cu_seqlens, turn.offsets
    if cu_seqlens is not None:
        _rule(x.dim() == 3, f"x must be (total, heads, head_dim) with cu_seqlens, got shape {tuple(x.shape)}")
        _rule(
            cu_seqlens.dim() == 1 and cu_seqlens.shape[0] >= 1 and cu_seqlens.dtype == torch.int32,
            f"cu_seqlens must be (batch + 1) int32, got shape {tuple(cu_seqlens.shape)} {cu_seqlens.dtype}",
        )
        _rule(cu_seqlens.device == x.device, f"cu_seqlens must be on the device of x, {x.device}")
        batch, seqlen = cu_seqlens.shape[0] - 1, turn.max_seqlen or 0
    else:
        _rule(
            x.dim() in (4, 5),
            f"x must be (batch, seqlen, heads, head_dim), or (total, heads, head_dim) with cu_seqlens, "
            f"got shape {tuple(x.shape)}",
        )
        batch, seqlen = x.shape[0], x.shape[1]
    if offsets is not None:
        _rule(
            offsets.shape == (batch,) and offsets.dtype in (torch.int32, torch.int64),
            f"seqlen_offsets must be an int or (batch) int32 or int64 with batch = {batch}, "
            f"got shape {tuple(offsets.shape)} {offsets.dtype}",
        )
        _rule(offsets.device == x.device, f"seqlen_offsets must be on the device of x, {x.device}")
    _rule(turn.offset >= 0, f"seqlen_offsets must be at least 0, got {turn.offset}")
    _rule(
        turn.offset + seqlen <= turn.cos.shape[0],
        f"cos must have a row for each position, seqlen_offsets + seqlen = {turn.offset} + {seqlen}, "
        f"got {turn.cos.shape[0]}",
    )


# ------------------------------------------------------------------------------------------------- one tensor, one turn


def _put(to: Any, tensor: Tensor, strides: tuple) -> None:
    to.data = tensor.data_ptr()
    to.stride[:] = strides
    to.dtype = native.DTYPES[tensor.dtype]


def _readable_angles(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype not in (dtype, torch.float32):
        tensor = tensor.float()
    return tensor if tensor.shape[1] <= 1 or tensor.stride(1) == 1 else tensor.contiguous()


def _turn_by_library(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> bool:
    """Turns x into out with fw_rotary; False if it is not for the library."""
    if x.shape[-1] > _MOST_DIM or x.numel() == 0:
        return False
    try:
        device = native.device_of(x)
    except Unsupported:
        return False
    if x.shape[-1] > 1 and (x.stride(-1) != 1 or out.stride(-1) != 1):
        return False
    cos, sin = _readable_angles(cos, x.dtype), _readable_angles(sin, x.dtype)
    r = _Struct(struct_size=ctypes.sizeof(_Struct))
    r.flags = _INTERLEAVED * bool(turn.interleaved) | _CONJUGATE * bool(turn.conjugate)
    r.heads, r.dim = x.shape[-2:]
    r.rotary_seqlen, r.rotary_dim, r.seqlen_offset = cos.shape[0], 2 * cos.shape[1], turn.offset
    _put(r.cos, cos, (cos.stride(0), 1, 0, 0))
    _put(r.sin, sin, (sin.stride(0), 1, 0, 0))
    if turn.cu_seqlens is None:
        r.batch, r.seqlen = x.shape[:2]
        _put(r.x, x, x.stride())
        _put(r.out, out, out.stride())
    else:
        cu_seqlens = turn.cu_seqlens.contiguous()
        r.batch, r.total = cu_seqlens.shape[0] - 1, x.shape[0]
        r.seqlen = r.total if turn.max_seqlen is None else turn.max_seqlen
        r.cu_seqlens = cu_seqlens.data_ptr()
        _put(r.x, x, (0, *x.stride()))
        _put(r.out, out, (0, *out.stride()))
        if out is not x:  # rows of no sequence, which the library does not touch
            last = int(cu_seqlens[-1]) if x.is_cpu else 0  # asking a GPU would wait for it
            out[last:].copy_(x[last:])
    if turn.offsets is not None:
        offsets = turn.offsets.to(torch.int32).contiguous()
        r.seqlen_offsets = offsets.data_ptr()
    execution = native.Execution(x)
    status = fw.lib.fw_rotary(device, ctypes.addressof(r), execution.address)
    if status == fw.UNSUPPORTED:  # the device has no kernel for it, or the forced one is not one of these
        return False
    fw.check(status)
    return True


def _rows(x: Tensor, table: Tensor, turn: Turn) -> tuple[Tensor, Tensor | None]:
    """Rows of cos or sin, to be broadcast over x's heads, and which rows of x they are for (None: all)."""
    if turn.cu_seqlens is None:
        length = x.shape[1]
        if turn.offsets is None:
            return table[turn.offset : turn.offset + length].unsqueeze(1), None
        positions = turn.offsets.unsqueeze(1) + torch.arange(turn.offset, turn.offset + length, device=x.device)
        rows = table.index_select(0, positions.flatten())
        return rows.view(x.shape[0], length, 1, table.shape[1]), None
    cu_seqlens = turn.cu_seqlens.long()
    row = torch.arange(x.shape[0], device=x.device)
    inside = row < cu_seqlens[-1]
    sequence = torch.searchsorted(cu_seqlens[1:], row, right=True).clamp(max=cu_seqlens.shape[0] - 2)
    positions = row - cu_seqlens[sequence] + turn.offset
    if turn.offsets is not None:
        positions = positions + turn.offsets[sequence]
    return table.index_select(0, torch.where(inside, positions, 0)).unsqueeze(1), inside.view(-1, 1, 1)


def _turn_by_torch(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> None:
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    pairs = cos.shape[1]
    rotary_dim = 2 * pairs
    if turn.cu_seqlens is not None and turn.cu_seqlens.shape[0] == 1:  # no sequence
        rotary_dim = 0
    else:
        (cos, inside), (sin, _) = _rows(x, cos, turn), _rows(x, sin, turn)
        cos, sin = cos.to(exact), sin.to(exact)
        if turn.conjugate:
            sin = -sin
        first = slice(0, rotary_dim, 2) if turn.interleaved else slice(0, pairs)
        second = slice(1, rotary_dim, 2) if turn.interleaved else slice(pairs, rotary_dim)
        a, b = x[..., first].to(exact), x[..., second].to(exact)
        turned = a * cos - b * sin, a * sin + b * cos
        if inside is not None:
            turned = torch.where(inside, turned[0], a), torch.where(inside, turned[1], b)
        out[..., first].copy_(turned[0])
        out[..., second].copy_(turned[1])
    if out is not x:
        out[..., rotary_dim:].copy_(x[..., rotary_dim:])


# ------------------------------------------------------------------------------------------------ all spans of a tensor


def _span(x: Tensor, first: int, count: int) -> Tensor:
    if x.dim() < 5:
        return x.narrow(-2, first, count)
    return x.select(2, first) if count == 1 else x.narrow(2, first, count).flatten(2, 3)


def _merged(x: Tensor, turn: Turn) -> tuple:
    """Two neighbouring spans that turn alike as one, where that is a view."""
    spans = turn.spans
    one_view = x.dim() < 5 or x.stride(2) == x.shape[3] * x.stride(3)
    if len(spans) == 4 and turn.cos_k is None and spans[0] + spans[1] == spans[2] and one_view:
        return spans[0], spans[1] + spans[3]
    return spans


def _turn_all(x: Tensor, turn: Turn, inplace: bool) -> Tensor:
    whole = x.dim() < 5 and tuple(turn.spans) == (0, x.shape[-2])
    if inplace:
        out = x
    else:
        out = torch.empty_like(x) if whole else x.clone()
    source = x if whole else out
    spans = _merged(out, turn)
    for n in range(0, len(spans), 2):
        part_in = source if whole else _span(source, spans[n], spans[n + 1])
        part_out = out if whole else part_in
        second = n > 0 and turn.cos_k is not None
        cos, sin = (turn.cos_k, turn.sin_k) if second else (turn.cos, turn.sin)
        if not _turn_by_library(part_in, part_out, cos, sin, turn):
            _turn_by_torch(part_in, part_out, cos, sin, turn)
    return out


class _InPlace(torch.autograd.Function):
    """A rotation that changes x, of which a gradient is wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *turn: Any) -> Tensor:  # type: ignore[override]
        # flash-attn lets a leaf that requires a gradient be changed; autograd does not let it be marked.
        if not (x.is_leaf and x.requires_grad):
            ctx.mark_dirty(x)
        _save(ctx, turn)
        _rotary_in_place(x, *turn)
        if x.is_leaf and x.requires_grad:
            tell_autograd(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        return _turned_back(ctx, gradient), *[None] * len(Turn._fields)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        raise Unsupported("a rotation in place has no forward-mode derivative; inplace=False has one")


class _Rotary(torch.autograd.Function):
    """A rotation into new memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *turn: Any) -> Tensor:  # type: ignore[override]
        return _rotary(x, *turn)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _save(ctx, inputs[1:])
        ctx.save_for_forward(*inputs[1:7])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        return _turned_back(ctx, gradient), *[None] * len(Turn._fields)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _rotate(tangent, Turn(*ctx.saved_tensors, *ctx.scalars), False)


def _save(ctx: Any, turn: tuple) -> None:
    ctx.save_for_backward(*turn[:6])
    ctx.scalars = turn[6:]


def _turned_back(ctx: Any, gradient: Tensor) -> Tensor:
    turn = Turn(*ctx.saved_tensors, *ctx.scalars)
    return _rotate(gradient, turn._replace(conjugate=not turn.conjugate), False)


def _rotate(x: Tensor, turn: Turn, inplace: bool, apply: Any = _Rotary.apply) -> Tensor:
    try:
        if is_differentiated(x):
            return _InPlace.apply(x, *turn) if inplace else apply(x, *turn)
        if not inplace:
            return _rotary(x, *turn)
        _rotary_in_place(x, *turn)
    except RuntimeError as error:
        raise_for(error)
    tell_autograd(x)
    return x


def rotated(x: Tensor, turn: Turn, inplace: bool) -> Tensor:
    """The differentiable rotation of x, which gets no new memory if in place. The operators check the arguments."""
    if torch.compiler.is_compiling():
        turned = ops.rotary.default(x, *turn)
        if inplace and x.is_leaf and x.requires_grad:  # as `_InPlace`: its numbers change, without a word to autograd
            with torch.no_grad():
                x.copy_(turned)
            return turned
        return x.copy_(turned) if inplace else turned
    return _rotate(x, turn, inplace)


_ARGUMENTS = (
    "Tensor cos, Tensor sin, Tensor? cos_k, Tensor? sin_k, Tensor? seqlen_offsets, Tensor? cu_seqlens, "
    "SymInt seqlen_offset, SymInt? max_seqlen, bool interleaved, bool conjugate, "
    "SymInt first, SymInt count, SymInt first_k=0, SymInt count_k=0"
)


def _compute(x: Tensor, *turn: Any) -> Tensor:
    _check(x, Turn(*turn))
    return _turn_all(x, Turn(*turn), False)


def _compute_in_place(x: Tensor, *turn: Any) -> None:
    _check(x, Turn(*turn))
    _turn_all(x, Turn(*turn), True)


def _compute_elsewhere(x: Tensor, *rest: Any) -> Tensor:
    """What the binding leaves to Python."""
    turn, inplace = Turn(*rest[:-1]), rest[-1]
    try:
        _check(x, turn)
        turned = _turn_all(x, turn, inplace)
    except BaseException as error:
        return as_text(error)
    return absent(x) if inplace else turned


def _fake(x: Tensor, *turn: Any) -> Tensor:
    _check(x, Turn(*turn))
    return torch.empty_like(x)


def _public(x: Tensor, *turn: Any) -> Tensor:
    # torch.func calls a kernel of an operator once for each of its transforms.
    return _rotate(x, Turn(*turn), False, super(torch.autograd.Function, _Rotary).apply)


library.define(f"_rotary(Tensor x, {_ARGUMENTS}) -> Tensor")
library.define(f"_rotary_(Tensor(a!) x, {_ARGUMENTS}) -> ()")
library.define(f"_rotary_elsewhere(Tensor(a!) x, {_ARGUMENTS.replace('=0', '')}, bool inplace) -> Tensor")
library.define(f"rotary(Tensor x, {_ARGUMENTS}) -> Tensor")
library.impl("_rotary", _compute, "CompositeExplicitAutograd")
library.impl("_rotary_", _compute_in_place, "CompositeExplicitAutograd")
library.impl("_rotary_elsewhere", _compute_elsewhere, "CompositeExplicitAutograd")
library.impl("rotary", _public, "CompositeImplicitAutograd")
torch.library.register_fake("flashwave::_rotary", _fake, lib=library)
torch.library.register_fake("flashwave::_rotary_", lambda x, *turn: _check(x, Turn(*turn)), lib=library)
_rotary, _rotary_in_place = ops._rotary.default._op, ops._rotary_.default._op

"""What is timed: attention problems, their tensors, and the peers that compute them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .. import dispatch
from .. import functions as interface
from ..errors import BackendRefused
from .timing import Call

Tensor = torch.Tensor

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward + backward"
# Matrix products of a direction, with the two of the forward as 1: the backward has five.
_PRODUCTS = {FORWARD: 1.0, BACKWARD: 2.5, BOTH: 3.5}

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Shape(NamedTuple):
    batch: int
    seqlen: int
    heads: int
    dim: int
    causal: bool = False
    dropout: float = 0.0
    padding: float = 0.0  # the part of a batch's positions that hold no token, below 1/2

    def lengths(self) -> list[int]:
        """Tokens of each sequence: spread evenly, the longest first, so that `padding` is left out on average."""
        part = 2.0 * self.padding / self.batch
        return [max(1, round(self.seqlen * (1.0 - part * (n + 0.5)))) for n in range(self.batch)]

    def flops(self, direction: str) -> float:
        """The usual count: the products of tokens alone, half of them with a causal mask, no recomputation."""
        pairs = self.heads * sum(length * length for length in self.lengths()) / (2 if self.causal else 1)
        return 4.0 * pairs * self.dim * _PRODUCTS[direction]

    def matrix_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the scores, a number for every pair of a query and a key."""
        return self.batch * self.heads * self.seqlen * self.seqlen * dtype.itemsize


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor


def draw(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Inputs:
    """N(0, 1) tensors of (batch, seqlen, heads, dim)."""
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape.batch, shape.seqlen, shape.heads, shape.dim)
    return Inputs(*[torch.randn(size, generator=generator, device=device).to(dtype) for _ in Inputs._fields])


class Padding(NamedTuple):
    """What each side needs to leave out padding, made before anything is timed."""

    kept: Tensor  # (batch, seqlen), True for tokens
    offsets: Tensor  # (batch + 1) of the sequences without padding
    longest: int
    bias: Tensor  # (batch, 1, 1 or seqlen, seqlen): -inf where a key is not seen, the causal mask included


def padding_of(shape: Shape, dtype: torch.dtype, device: torch.device) -> Padding | None:
    if shape.padding == 0.0:
        return None
    lengths = torch.tensor(shape.lengths(), device=device)
    kept = torch.arange(shape.seqlen, device=device) < lengths[:, None]
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    hidden = ~kept[:, None, None, :]
    if shape.causal:
        hidden = hidden | torch.ones(shape.seqlen, shape.seqlen, dtype=torch.bool, device=device).triu_(1)
    return Padding(
        kept, offsets, max(shape.lengths()), torch.zeros((), device=device, dtype=dtype).masked_fill(hidden, -torch.inf)
    )


# --------------------------------------------------------------------------------------------------------------- peers

# Each takes q, k, v, causal, dropout_p and padding; flashwave gets the tokens alone if there is padding.


def _flashwave(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0, padding: Padding | None = None
) -> Tensor:
    if padding is None:
        return interface.flash_attn_func(q, k, v, dropout_p=dropout_p, causal=causal)
    lengths = padding.offsets, padding.offsets, padding.longest, padding.longest
    return interface.flash_attn_varlen_func(q, k, v, *lengths, dropout_p=dropout_p, causal=causal)


def _on(backend: str) -> Callable[..., Tensor]:
    """flashwave with a backend that is asked for, whatever its rules would choose."""

    def attend(*arguments: Any, **options: Any) -> Tensor:
        with dispatch.backend(backend):
            return _flashwave(*arguments, **options)

    return attend


@functools.lru_cache(maxsize=1)
def _causal_mask(seqlen: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((seqlen, seqlen), -torch.inf, dtype=dtype, device=device).triu_(1)


def _standard(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0, padding: Padding | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v with the matrix in memory. The scale is on q and the mask is made once: both cheap."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
    if padding is not None:
        scores += padding.bias
    elif causal:
        scores += _causal_mask(q.shape[-2], scores.dtype, q.device)
    probs = torch.softmax(scores, dim=-1)
    return torch.matmul(F.dropout(probs, dropout_p) if dropout_p else probs, v)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0, padding: Padding | None = None
) -> Tensor:
    if padding is not None:
        return F.scaled_dot_product_attention(q, k, v, padding.bias, dropout_p)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=causal)


class Peer(NamedTuple):
    label: str
    attend: Callable[..., Tensor]
    heads_first: bool  # takes (batch, heads, seqlen, dim)

    def layout(self, tensor: Tensor, padding: Padding | None = None) -> Tensor:
        """The numbers of a (batch, seqlen, heads, dim) tensor in the layout that the peer likes best."""
        if self.heads_first:
            return tensor.transpose(1, 2).contiguous()
        return tensor if padding is None else tensor[padding.kept]


OURS = "flashwave"
BACKENDS = {"native": "flashwave native", "triton": "flashwave Triton", "torch": "flashwave PyTorch"}
PEERS = {
    OURS: Peer("flashwave", _flashwave, False),
    "standard": Peer("standard PyTorch", _standard, True),
    "sdpa": Peer("PyTorch SDPA", _sdpa, True),
    **{name: Peer(label, _on(name), False) for name, label in BACKENDS.items()},
}


def backends_on(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The backends of flashwave that compute attention there."""
    tensor, found = torch.zeros(1, 16, 1, 16, device=device, dtype=dtype), []
    for name in BACKENDS:
        try:
            PEERS[name].attend(tensor, tensor, tensor, False)
        except BackendRefused:
            continue
        found.append(name)
    return tuple(found)


def make_call(name: str, inputs: Inputs, shape: Shape, direction: str) -> Call:
    """One run of a peer. The backward alone runs from a graph that is made here, once."""
    peer, padding = PEERS[name], padding_of(shape, inputs.q.dtype, inputs.q.device)
    q, k, v, dout = [peer.layout(tensor, padding).detach() for tensor in inputs]
    options = {"causal": shape.causal, "dropout_p": shape.dropout, "padding": padding}
    if direction == FORWARD:

        def forward() -> Tensor:
            with torch.no_grad():
                return peer.attend(q, k, v, **options)

        return forward
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    if direction == BOTH:
        return lambda: torch.autograd.grad(peer.attend(*leaves, **options), leaves, dout)
    out = peer.attend(*leaves, **options)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def matrix_copies(name: str, direction: str, dropout: float = 0.0) -> int:
    """How many matrices of the size of the scores a peer has in memory at once, at most."""
    if name != "standard":
        return 0
    dropped = 1 if dropout else 0
    return (2 if direction == FORWARD else 4) + dropped

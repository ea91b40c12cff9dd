"""What is timed: attention problems, their tensors, and the peers that compute them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

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

    def flops(self, direction: str) -> float:
        """The usual count: the products alone, half of them with a causal mask, no recomputation."""
        pairs = self.batch * self.heads * self.seqlen * self.seqlen / (2 if self.causal else 1)
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


# --------------------------------------------------------------------------------------------------------------- peers


def _flashwave(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0) -> Tensor:
    return interface.flash_attn_func(q, k, v, dropout_p=dropout_p, causal=causal)


def _on(backend: str) -> Callable[..., Tensor]:
    """flashwave with a backend that is asked for, whatever its rules would choose."""

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0) -> Tensor:
        with dispatch.backend(backend):
            return _flashwave(q, k, v, causal, dropout_p)

    return attend


@functools.lru_cache(maxsize=1)
def _causal_mask(seqlen: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((seqlen, seqlen), -torch.inf, dtype=dtype, device=device).triu_(1)


def _standard(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(d)) v with the matrix in memory. The scale is on q and the mask is made once: both cheap."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
    if causal:
        scores += _causal_mask(q.shape[-2], scores.dtype, q.device)
    probs = torch.softmax(scores, dim=-1)
    return torch.matmul(F.dropout(probs, dropout_p) if dropout_p else probs, v)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float = 0.0) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=causal)


class Peer(NamedTuple):
    label: str
    attend: Callable[..., Tensor]  # of q, k, v, causal and dropout_p
    heads_first: bool  # takes (batch, heads, seqlen, dim)

    def layout(self, tensor: Tensor) -> Tensor:
        """The numbers of a (batch, seqlen, heads, dim) tensor in the layout that the peer likes best."""
        return tensor.transpose(1, 2).contiguous() if self.heads_first else tensor


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


def make_call(name: str, inputs: Inputs, causal: bool, direction: str) -> Call:
    """One run of a peer. The backward alone runs from a graph that is made here, once."""
    peer = PEERS[name]
    q, k, v, dout = [peer.layout(tensor).detach() for tensor in inputs]
    if direction == FORWARD:

        def forward() -> Tensor:
            with torch.no_grad():
                return peer.attend(q, k, v, causal)

        return forward
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    if direction == BOTH:
        return lambda: torch.autograd.grad(peer.attend(*leaves, causal), leaves, dout)
    out = peer.attend(*leaves, causal)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def matrix_copies(name: str, direction: str) -> int:
    """How many matrices of the size of the scores a peer has in memory at once, at most."""
    if name != "standard":
        return 0
    return 2 if direction == FORWARD else 4

"""Attention as PyTorch programs write it, whole matrices: fast enough for tests of any size."""

from __future__ import annotations

import torch


def attention(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0.0, bias=None, dtype=torch.float64):
    """(out, lse) in `dtype`, shapes as flash_attn_func's."""
    q, k, v = (tensor.to(dtype) for tensor in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    rows = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    columns = torch.arange(k.shape[1], device=q.device)[None, :]
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    if left >= 0:
        hidden |= columns < rows - left
    if right >= 0:
        hidden |= columns > rows + right
    scores = scores.masked_fill(hidden, -torch.inf)
    exact = torch.promote_types(dtype, torch.float32)
    probs = torch.softmax(scores.to(exact), -1).nan_to_num(0.0).to(dtype)
    return torch.einsum("bhqk,bkhd->bqhd", probs, v), torch.logsumexp(scores.to(exact), -1)

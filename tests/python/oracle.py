"""docs/semantics.md once more, as plainly as it can be said: one sequence and one head at a time, whole matrices.

Shares no code with the package. In fp64 it is the reference; in another type it is the naive attention of the numeric
rule (docs/numerics.md), whose matrices are all rounded to that type. Differentiable, so that autograd gives gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

MASK32 = 0xFFFFFFFF


def philox(counter, key):
    x, k = list(counter), list(key)
    for _ in range(7):
        left, right = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(right >> 32) ^ x[1] ^ k[0], right & MASK32, (left >> 32) ^ x[3] ^ k[1], left & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return x


def dropout_bits(seed, offset, batch_head, i, keys):
    key = (seed & MASK32, ((seed >> 32) ^ (offset >> 32)) & MASK32)
    bits = []
    for block in range((keys + 7) // 8):
        for word in philox((block, i, batch_head, offset & MASK32), key):
            bits += [word & 0xFFFF, word >> 16]
    return bits[:keys]


class Lengths(NamedTuple):
    queries: int
    stored: int
    pad: int
    keys: int


def lengths(p, b):
    queries = p.q.shape[1] if p.cu_seqlens_q is None else int(p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b])
    if p.seqused_k is not None:
        stored = int(p.seqused_k[b])
    elif p.cu_seqlens_k is not None:
        stored = int(p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b])
    else:
        stored = p.max_seqlen_k
    pad = 0 if p.leftpad_k is None else int(p.leftpad_k[b])
    new = 0 if p.k_new is None else p.k_new.shape[1]
    return Lengths(queries, stored, pad, max(0, stored + new - pad))


def query_at(p, b, i):
    return (b, i) if p.cu_seqlens_q is None else (int(p.cu_seqlens_q[b]) + i,)


def key_at(p, b, row):
    if p.block_table is not None:
        size = p.k.shape[1]
        return int(p.block_table[b, row // size]), row % size
    if p.cu_seqlens_k is not None:
        return (int(p.cu_seqlens_k[b]) + row,)
    return (b if p.cache_batch_idx is None else int(p.cache_batch_idx[b])), row


def rotated(p, x, position):
    """One row of all heads, (heads, dim), in fp32 (fp64 for fp64) and rounded back."""
    work = torch.promote_types(x.dtype, torch.float32)
    cos, sin = p.rotary_cos[position].to(work), p.rotary_sin[position].to(work)
    y = x.to(work).clone()
    for n in range(len(cos)):
        a, b = (2 * n, 2 * n + 1) if p.rotary_interleaved else (n, n + len(cos))
        y[:, a] = x[:, a].to(work) * cos[n] - x[:, b].to(work) * sin[n]
        y[:, b] = x[:, a].to(work) * sin[n] + x[:, b].to(work) * cos[n]
    return y.to(x.dtype)


def appended(p):
    """k and v with the new rows in them, as new tensors."""
    k, v = p.k.clone(), p.v.clone()
    for b in range(p.batch if p.k_new is not None else 0):
        for t in range(p.k_new.shape[1]):
            position = lengths(p, b).stored + t
            at = key_at(p, b, position)
            k[at] = p.k_new[b, t] if p.rotary_cos is None else rotated(p, p.k_new[b, t], position)
            v[at] = p.v_new[b, t]
    return k, v


def visible(p, n):
    """Which keys each query sees."""
    seen = torch.zeros(n.queries, n.keys, dtype=torch.bool)
    for i in range(n.queries):
        diagonal = i + n.keys - n.queries
        for j in range(n.keys):
            right = 0 if p.causal else p.window_right
            seen[i, j] = (p.window_left < 0 or j >= diagonal - p.window_left) and (right < 0 or j <= diagonal + right)
    return seen


def shared(tensor, axis, index):
    return 0 if tensor.shape[axis] == 1 else index


class Result(NamedTuple):
    out: torch.Tensor
    lse: torch.Tensor
    probs: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def attention(p, dtype=torch.float64):
    """Everything a forward gives, computed in `dtype` (the softmax at least in fp32), on the CPU."""
    work = torch.promote_types(dtype, torch.float32)
    heads, group = p.q.shape[-2], p.q.shape[-2] // p.k.shape[-2]
    k_all, v_all = appended(p)
    out = torch.zeros((*p.q.shape[:-1], p.v.shape[-1]), dtype=dtype)
    lse = torch.full(p.q.shape[:-1], float("-inf"), dtype=work)  # (.., queries, heads) until the end
    probs = torch.zeros(p.batch, heads, p.max_seqlen_q, p.max_seqlen_k, dtype=work)
    for b in range(p.batch):
        n = lengths(p, b)
        if n.queries == 0:
            continue
        q = [p.q[query_at(p, b, i)] for i in range(n.queries)]
        if p.rotary_cos is not None:
            moving = p.causal or p.window_left >= 0 or p.window_right >= 0
            q = [rotated(p, row, n.stored + (i if moving else 0)) for i, row in enumerate(q)]
        q = torch.stack(q).to(dtype)
        k = torch.stack([k_all[key_at(p, b, n.pad + j)] for j in range(n.keys)] or [p.k.new_zeros(p.k.shape[-2:])])
        v = torch.stack([v_all[key_at(p, b, n.pad + j)] for j in range(n.keys)] or [p.v.new_zeros(p.v.shape[-2:])])
        k, v = k[: n.keys].to(dtype), v[: n.keys].to(dtype)
        seen = visible(p, n)
        distance = torch.tensor([[abs(i + n.keys - n.queries - j) for j in range(n.keys)] for i in range(n.queries)])
        for h in range(heads):
            s = (q[:, h] @ k[:, h // group].T) * p.softmax_scale
            if p.softcap > 0:
                s = p.softcap * torch.tanh(s / p.softcap)
            if p.bias is not None:
                bias = p.bias[shared(p.bias, 0, b), shared(p.bias, 1, h)]
                bias = bias[: 1 if bias.shape[0] == 1 else n.queries, : 1 if bias.shape[1] == 1 else n.keys]
                s = s + bias
            if p.alibi_slopes is not None:
                slope = p.alibi_slopes[h] if p.alibi_slopes.dim() == 1 else p.alibi_slopes[b, h]
                s = s - slope * distance.view(n.queries, n.keys)
            s = torch.where(seen, s.to(work), float("-inf"))
            sink = torch.tensor(float("-inf")) if p.sinks is None else p.sinks[h]
            top = torch.cat((s, sink.to(work).expand(n.queries, 1)), 1).amax(1, keepdim=True).detach()
            top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
            e, sink_e = torch.exp(s - top), torch.exp(sink.to(work) - top)
            total = e.sum(1, keepdim=True) + sink_e
            empty = total == 0
            total = torch.where(empty, torch.ones_like(total), total)
            prob = (e / total).to(dtype)
            row_lse = torch.where(empty, torch.full_like(top, float("-inf")), top + torch.log(total))[:, 0]
            kept, scale = torch.ones_like(seen), 1.0
            if p.dropout_p > 0:
                seed, offset = p.rng_state.tolist()
                bits = [dropout_bits(seed, offset, b * heads + h, i, n.keys) for i in range(n.queries)]
                kept = torch.tensor(bits).view(n.queries, n.keys) >= round(65536 * p.dropout_p)
                scale = 1 / (1 - p.dropout_p)
            used = torch.where(kept, prob * scale, torch.zeros_like(prob))
            rows = (b, slice(None), h) if p.cu_seqlens_q is None else (slice(*p.cu_seqlens_q[b : b + 2].tolist()), h)
            out[rows] = used @ v[:, h // group]
            lse[rows] = row_lse
            probs[b, h, : n.queries, : n.keys] = torch.where(kept | ~seen, prob.to(work), -prob.to(work)).detach()
    return Result(out, lse.transpose(-1, -2), probs, k_all.detach(), v_all.detach())

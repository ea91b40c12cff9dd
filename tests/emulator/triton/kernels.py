"""Triton kernels of the usual kinds, written for the emulator's tests."""

import triton.language as tl

import triton


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + at, values / tl.sum(values, 0), mask=inside)


@triton.jit
def layer_norm(x, weight, bias, out, mean_out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        centred = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32) - mean
        squares += tl.where(at < columns, centred * centred, 0.0)
    factor = 1 / tl.sqrt(tl.sum(squares, 0) / columns + epsilon)
    tl.store(mean_out + row, mean)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = (tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32) - mean) * factor
        value = value * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
        tl.store(out + row * columns + at, value, mask=inside)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    """C (+)= A B for row-major A and B; SPLIT > 1: each program takes every SPLIT-th block of K and adds atomically."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.program_id(2) * BK + tl.arange(0, BK)
    ap = a + rm[:, None] * K + rk[None, :]
    bp = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * SPLIT):
        left = K - k
        av = tl.load(ap, mask=(rm[:, None] < M) & (tl.arange(0, BK)[None, :] < left), other=0.0)
        bv = tl.load(bp, mask=(rn[None, :] < N) & (tl.arange(0, BK)[:, None] < left), other=0.0)
        acc = tl.dot(av, bv, acc)
        ap += BK * SPLIT
        bp += BK * SPLIT * N
    cp = c + rm[:, None] * N + rn[None, :]
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    if SPLIT == 1:
        tl.store(cp, acc.to(c.dtype.element_ty), mask=inside)
    else:
        tl.atomic_add(cp, acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def attention(
    q, k, v, o, lse, length, keys, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr
):
    """[heads, length, D]; one block of queries per program."""
    head = tl.program_id(1)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rd = tl.arange(0, D)
    rn = tl.arange(0, BN)
    qv = tl.load(q + head * length * D + rm[:, None] * D + rd[None, :], mask=rm[:, None] < length, other=0.0)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    factor = scale * 1.4426950408889634
    kp = k + head * keys * D + rn[None, :] * D + rd[:, None]
    vp = v + head * keys * D + rn[:, None] * D + rd[None, :]
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, (tl.program_id(0) + 1) * BM)
    for start in range(0, end, BN):
        n = start + rn
        kv = tl.load(kp, mask=n[None, :] < keys, other=0.0)
        s = tl.dot(qv, kv) * factor
        seen = n[None, :] < keys
        if CAUSAL:
            seen = seen & (n[None, :] <= rm[:, None])
        s = tl.where(seen, s, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 1))
        p = tl.math.exp2(s - now[:, None])
        rescale = tl.math.exp2(largest - now)
        total = total * rescale + tl.sum(p, 1)
        vv = tl.load(vp, mask=n[:, None] < keys, other=0.0)
        acc = tl.dot(p.to(vv.dtype), vv, acc * rescale[:, None])
        largest = now
        kp += BN * D
        vp += BN * D
    acc = acc / total[:, None]
    tl.store(
        o + head * length * D + rm[:, None] * D + rd[None, :], acc.to(o.dtype.element_ty), mask=rm[:, None] < length
    )
    tl.store(lse + head * length + rm, (largest + tl.math.log2(total)) * 0.6931471805599453, mask=rm < length)


@triton.jit
def sort_and_scan(x, out_sorted, out_scan, out_argmax, BLOCK: tl.constexpr):
    """Cross-lane work: a bitonic sort, a prefix sum and the place of the maximum."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * BLOCK + at)
    tl.store(out_sorted + row * BLOCK + at, tl.sort(values))
    tl.store(out_scan + row * BLOCK + at, tl.cumsum(values, 0))
    tl.store(out_argmax + row, tl.argmax(values, 0))


@triton.jit
def mathematics(x, out, n, BLOCK: tl.constexpr):
    """Functions that come from the device library."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, mask=inside, other=1.0)
    tl.store(out + at, tl.exp(-v * v), mask=inside)
    tl.store(out + n + at, tl.log(tl.abs(v) + 1.0), mask=inside)
    tl.store(out + 2 * n + at, tl.sin(v), mask=inside)
    tl.store(out + 3 * n + at, tl.cos(v), mask=inside)
    tl.store(out + 4 * n + at, tl.math.erf(v), mask=inside)
    tl.store(out + 5 * n + at, tl.rsqrt(tl.abs(v) + 0.5), mask=inside)
    tl.store(out + 6 * n + at, tl.sqrt(tl.abs(v)), mask=inside)
    tl.store(out + 7 * n + at, tl.sigmoid(v), mask=inside)


@triton.jit
def dropout(x, out, n, probability, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    keep = tl.rand(seed, at) > probability
    tl.store(out + at, tl.where(keep, tl.load(x + at, mask=inside) / (1 - probability), 0.0), mask=inside)

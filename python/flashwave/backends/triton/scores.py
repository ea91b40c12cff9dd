"""What the Triton kernels share: lengths, tiles, scores in powers of two, the mask and the dropout.

Scores are kept in units of log2(e), so that exp2, the one exponential GPUs have, gives the softmax. Functions that take
pairs get the queries `i` and the keys `j` as tensors that broadcast against each other: the forward has queries in
rows, the pass for dk and dv has keys in rows.
"""

import triton.language as tl

import triton

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LARGEST = tl.constexpr(3.4028234663852886e38)
KEYS_PER_PHILOX = tl.constexpr(8)
PHILOX_ROUNDS = tl.constexpr(7)
GATHERS = tl.constexpr(hasattr(tl, "gather"))  # from Triton 3.3 on
LEAST_GATHERED = tl.constexpr(256)  # as many threads as a program has: Triton 3.6 does not compile gathers of fewer

# Arguments that may be anything: code of its own for lengths of 1 or multiples of 16 would be compiled for nothing.
SIZES = (
    "blocks", "sequences", "heads", "group", "span", "max_queries", "max_keys", "left", "right", "threshold",
)  # fmt: skip


@triton.jit
def place_of(program, blocks, batch_heads, span):
    """The block and the head of a program: all first blocks of `span` heads, then all second ones, and so on.

    Programs that run at a time then are of equal length, and their heads' keys and values stay in the cache.
    """
    first = program // (span * blocks) * span
    inside = program - first * blocks
    heads = tl.minimum(span, batch_heads - first)
    return inside // heads, first + inside % heads


@triton.jit
def sequence_rows(offsets, b, most):
    """The first row of a sequence among packed ones and its number of rows; 0 and `most` where rows are not packed."""
    first, count = 0, most
    if offsets is not None:
        first = tl.load(offsets + b)
        count = tl.load(offsets + b + 1) - first
    return first, count


@triton.jit
def key_rows(offsets, seqused, leftpad, b, most):
    """The first key's row in the sequence's storage (packed rows counted) and the number of keys."""
    first, count = sequence_rows(offsets, b, most)
    if seqused is not None:
        count = tl.load(seqused + b)
    if leftpad is not None:
        pad = tl.load(leftpad + b)
        first += pad
        count = tl.maximum(count - pad, 0)
    return first, count


@triton.jit
def key_runs(i0, queries, keys, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(begin, whole_begin, whole_end, end), the first three multiples of BLOCK_N.

    Keys begin .. end - 1 hold all that a query from i0 on sees; those whole_begin .. whole_end - 1 all of them see.
    """
    diagonal = i0 + (keys - queries)
    begin = 0
    end = keys
    whole_begin = 0
    whole_end = keys // BLOCK_N * BLOCK_N
    if right is not None:
        end = tl.minimum(keys, tl.maximum(diagonal + tl.minimum(BLOCK_M, queries - i0) + right, 0))
        whole_end = tl.minimum(whole_end, tl.maximum(diagonal + right + 1, 0) // BLOCK_N * BLOCK_N)
    if left is not None:
        begin = tl.maximum(diagonal - left, 0) // BLOCK_N * BLOCK_N
        whole_begin = tl.minimum(tl.maximum(diagonal + BLOCK_M - 1 - left, 0), end)
        whole_begin = tl.maximum((whole_begin + BLOCK_N - 1) // BLOCK_N * BLOCK_N, begin)
        whole_end = tl.maximum(whole_end, whole_begin)
    return begin, whole_begin, whole_end, end


@triton.jit
def load_tile(base, count, stride, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHECK: tl.constexpr):
    """The first ROWS rows of a matrix of `count`; 0 beyond its DIM columns and, with CHECK, its rows."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = base + rows[:, None] * stride + columns[None, :]
    if CHECK:
        inside = rows[:, None] < count
        if DIM < COLUMNS:
            inside = inside & (columns[None, :] < DIM)
        return tl.load(at, mask=inside, other=0.0)
    if DIM < COLUMNS:
        return tl.load(at, mask=columns[None, :] < DIM, other=0.0)
    return tl.load(at)


@triton.jit
def store_tile(base, values, count, stride, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Writes what `load_tile` with CHECK reads."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = base + rows[:, None] * stride + columns[None, :]
    inside = rows[:, None] < count
    if DIM < COLUMNS:
        inside = inside & (columns[None, :] < DIM)
    tl.store(at, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def tanh(x):
    """Within 2 units in the last place: a polynomial where 1 - 2 / (1 + exp(2x)) would cancel."""
    z = x * x
    small = -0.005717002786695957
    small = small * z + 0.020650550723075867
    small = small * z - 0.05374348536133766
    small = small * z + 0.13331490755081177
    small = small * z - 0.3333328366279602
    small = x + x * (small * z)
    size = tl.abs(x)
    large = 1.0 - 2.0 / (1.0 + tl.exp2(size * (2 * LOG2_E)))
    return tl.where(size < 0.625, small, tl.where(x < 0, -large, large))


@triton.jit
def in_log2(x):
    """x * log2(e), where what is finite stays finite (kernels/common/score.h says why): a bias, a log-sum-exp."""
    return tl.maximum(x * LOG2_E, x * 0.000000014901161193847656 - LARGEST)  # 2^-26: -LARGEST unless x is -inf or NaN


@triton.jit
def from_log2(x):
    """The log-sum-exp of a row; what in_log2 has cut off is given back."""
    return tl.where(x <= -LARGEST, x, x * LN_2)


@triton.jit
def scores(products, i, j, i0, j0, queries, keys, bias, bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor):
    """Scores of pairs from products of q and k, and the tanh of the softcap (anything, where there is none).

    factor: softmax_scale * log2(e). With a softcap `cap` is softcap * log2(e) and `cap_factor` is softmax_scale /
    softcap. bias points to the matrix of the head, i0 and j0 are the tile's first query and key; slope is in units of
    log2(e), like the result.
    """
    curve = products
    if cap is not None:
        curve = tanh(products * cap_factor)
        result = curve * cap
    else:
        result = products * factor
    if bias is not None:
        tile = bias + tl.cast(i0, tl.int64) * bias_stride_q + tl.cast(j0, tl.int64) * bias_stride_k
        at = tile + (i - i0) * bias_stride_q + (j - j0) * bias_stride_k
        result += in_log2(tl.load(at, mask=(i < queries) & (j < keys), other=0.0).to(tl.float32))
    if slope is not None:
        result -= slope * tl.abs(i + (keys - queries) - j).to(tl.float32)
    return result, curve


@triton.jit
def visible(i, j, queries, keys, left, right):
    """Which pairs exist and are seen; left and right are None for no limit."""
    seen = j < keys
    if right is not None:
        seen = seen & (j <= i + (keys - queries) + right)
    if left is not None:
        seen = seen & (j >= i + (keys - queries) - left)
    return seen


@triton.jit
def kept(rng_state, batch_head, i, first_key, threshold, KEYS: tl.constexpr, KEYS_IN_ROWS: tl.constexpr):
    """Which pairs dropout keeps (docs/semantics.md). i: the queries; first_key: a multiple of 8.

    The seed and the offset are read here, so that the replay of a graph draws with those of its own time.
    """
    seed, offset = tl.load(rng_state), tl.load(rng_state + 1)
    low = (seed & 0xFFFFFFFF).to(tl.uint64)
    high = (((seed >> 32) ^ (offset >> 32)) & 0xFFFFFFFF).to(tl.uint64)
    CALLS: tl.constexpr = KEYS // KEYS_PER_PHILOX
    QUERIES: tl.constexpr = i.shape[0]
    calls = first_key // KEYS_PER_PHILOX + tl.arange(0, CALLS)
    whole = tl.zeros((QUERIES, CALLS), tl.int32)
    w0, w1, w2, w3 = tl.philox(
        (high << 32) | low,
        calls[None, :] + whole,
        i[:, None] + whole,
        batch_head + whole,
        (offset & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True) + whole,
        n_rounds=PHILOX_ROUNDS,
    )
    # One number holds a bit for each of the call's keys, so that little moves between layouts: half (j % 2) of word
    # (j % 8) / 2 decides over bit j % 8.
    bits = _two_bits(w0, threshold) | (_two_bits(w1, threshold) << 2)
    bits = bits | (_two_bits(w2, threshold) << 4) | (_two_bits(w3, threshold) << 6)
    key = tl.arange(0, KEYS)
    call, place = key // KEYS_PER_PHILOX, key % KEYS_PER_PHILOX
    if KEYS_IN_ROWS:
        bits = _spread(tl.trans(bits), call[:, None], 0, CALLS, QUERIES) >> place[:, None]
    else:
        bits = _spread(bits, call[None, :], 1, QUERIES, CALLS) >> place[None, :]
    return (bits & 1) != 0


@triton.jit
def _spread(bits, call, AXIS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """bits[call] along an axis, for all keys. As a gather where there is one: through a reshape the compiler computes
    Philox in the layout of the products, where 4 or 8 threads make the same call."""
    gathers: tl.constexpr = GATHERS and ROWS * COLUMNS >= LEAST_GATHERED
    if AXIS == 0:
        if gathers:
            result = bits.gather(tl.broadcast_to(call, (ROWS * KEYS_PER_PHILOX, COLUMNS)), 0)
        else:
            result = tl.broadcast_to(bits[:, None, :], (ROWS, KEYS_PER_PHILOX, COLUMNS))
            result = tl.reshape(result, (ROWS * KEYS_PER_PHILOX, COLUMNS))
    else:
        if gathers:
            result = bits.gather(tl.broadcast_to(call, (ROWS, COLUMNS * KEYS_PER_PHILOX)), 1)
        else:
            result = tl.broadcast_to(bits[:, :, None], (ROWS, COLUMNS, KEYS_PER_PHILOX))
            result = tl.reshape(result, (ROWS, COLUMNS * KEYS_PER_PHILOX))
    return result


@triton.jit
def _two_bits(word, threshold):
    """Whether the elements of the low and the high half stay."""
    low = ((word & 0xFFFF).to(tl.int32) >= threshold).to(tl.int32)
    return low | (((word >> 16).to(tl.int32) >= threshold).to(tl.int32) << 1)

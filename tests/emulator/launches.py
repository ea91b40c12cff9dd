"""Launches of kernels that the library ships, with arguments as the library passes them."""

import ctypes
import pathlib
import re
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "codeobj"))

from check_code_objects import ARGUMENT_BYTES

NO_WINDOW = 1 << 40
HEAD_BLOCK, SCORE_WAVES = 32, 4  # kernels/abi/head_backward.h, score_gradients.h


def structure(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def named(kind, names):
    return [(n, kind) for n in names.split()]


I64, I32, U64, F32 = ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_float
# kernels/abi/params.h, gpu_launch.h
Tensor = structure("Tensor", ("data", U64), ("stride", I64 * 4), ("dtype", I32), ("most", I32))
Arguments = structure(
    "Arguments",
    *named(Tensor, "q k v o lse bias probs d_o d_lse dq dk dv d_bias"),
    *named(U64, "d_sinks d_slopes cu_seqlens_q cu_seqlens_k seqused_k leftpad_k cache_batch_idx block_table"),
    *named(U64, "alibi_slopes sinks"),
    *named(I64, "block_table_stride alibi_batch_stride page_size seqlen_new window_left window_right"),
    *named(Tensor, "k_new v_new rotary_cos rotary_sin q_rotated"),
    *named(I64, "rotary_dim rotary_offset"),
    *named(I32, "rotary_interleaved rotary_per_row batch heads_q heads_k seqlen_q seqlen_k dim_qk dim_v conjugate"),
    *named(F32, "softmax_scale softcap dropout_p"),
    ("dropout_threshold", ctypes.c_uint32),
    *named(U64, "dropout_seed dropout_offset dropout_state"),
    *named(I64, "position_shift"),
    *named(I32, "positions accumulate position_q position_k dropout_first dropout_heads"),
    *named(I32, "splits rows_per_task"),
    *named(I64, "keys_per_split tasks"),
    *named(I32, "heads_per_task zeroed_bytes"),
    *named(I64, "scratch_bytes workspace_bytes"),
    *named(I32, "in_order"),
    *named(ctypes.c_int16, "dq_columns lse_by_scale"),
    *named(U64, "shared scratch"),
)
assert ctypes.sizeof(Arguments) == ARGUMENT_BYTES
F16, BF16, FLOAT = 1, 2, 3


def bf16(x):
    """Rounded to bf16 (half away from zero: it is only data), as its bits."""
    return ((np.ascontiguousarray(x, np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


class Launch:
    """One head of a forward: `queries` against `keys`, of which a query sees `window` to the left and right."""

    def __init__(self, row, queries, keys, window=(NO_WINDOW, 0), ramp=False):
        self.row, self.queries, self.keys, self.window, self.ramp = row, queries, keys, window, ramp

    def run(self, session, code):
        return self.prepared(session, code)()

    def prepared(self, session, code):
        """Data on the device, and a function that launches and gives the reports."""
        row, rng = self.row, np.random.default_rng(1)
        shapes = ((self.queries, row.dim_qk), (self.keys, row.dim_qk), (self.keys, row.dim_v))
        q, k, v = (rng.standard_normal(shape) for shape in shapes)
        if self.ramp:  # scores grow by thousands from key to key: the reference must be chosen again and again
            q[:], k[:] = 8.0, np.arange(self.keys)[:, None] * 8.0
        args = Arguments(window_left=self.window[0], window_right=self.window[1])
        args.batch = args.heads_q = args.heads_k = args.splits = 1
        args.seqlen_q, args.seqlen_k, args.dim_qk, args.dim_v = self.queries, self.keys, row.dim_qk, row.dim_v
        args.softmax_scale = row.dim_qk**-0.5
        if row.modified:
            args.softcap = 20.0
        tasks = -(-self.queries // row.tile_q)
        args.tasks = tasks
        out = np.zeros((self.queries, row.dim_v), np.uint16), np.zeros(self.queries, np.float32)
        for name, array in zip(["q", "k", "v", "o", "lse"], (bf16(q), bf16(k), bf16(v), *out)):
            width = array.shape[1] if array.ndim > 1 else 1
            strides = (I64 * 4)(array.size, width, width, 1)
            dtype = BF16 if array.dtype == np.uint16 else FLOAT
            setattr(args, name, Tensor(session.buffer(array).address, strides, dtype))
        return lambda: session.run(code, row.name, tasks, row.threads, [bytes(args)], check=False)


class BackwardLaunch:
    """Two query heads (or `heads`) that share a key head, if the kernel takes that; a mask as above. LSE and delta are
    made up (`numbers`): only waits matter."""

    def __init__(self, row, queries, keys, window=(NO_WINDOW, 0), ragged=False, padded=False, ordered=False, **more):
        self.row, self.queries, self.keys, self.window = row, queries, keys, window
        self.ragged, self.padded, self.ordered = ragged, padded, ordered
        self.dtype = more.pop("dtype", F16 if "_f16_" in row.name else BF16)
        self.bias, self.alibi = more.pop("bias", 0), more.pop("alibi", False)
        self.softcap, self.dropout = more.pop("softcap", 0.0), more.pop("dropout", 0.0)
        self.state = more.pop("state", False)  # the seed of dropout is in memory
        self.summed = more.pop("summed", False)  # a bias has one entry
        self.numbers = more.pop("numbers", -0.5)
        self.narrower = more.pop("narrower", 0)  # columns less than the kernel is for
        self.unwanted = more.pop("unwanted", ())  # gradients that nobody asks for
        self.heads = more.pop("heads", 2)
        self.out, self.d_lse = more.pop("out", None), more.pop("d_lse", False)  # the type of O; a gradient through LSE
        assert not more

    def bits(self, x):
        return np.float16(x).view(np.uint16) if self.dtype == F16 else bf16(x)

    def run(self, session, code):
        row, rng = self.row, np.random.default_rng(1)
        of_keys, whole = row.work == "kKeyBlocks", "_bwd_head_" in row.name
        scores = row.op in ("kDBias", "kDSlopes")
        passing, kept = (row.tile_q, row.tile_k) if of_keys else (row.tile_k, row.tile_q)
        sums = re.search("kNeedsAnyOrder|kOrdersByHeads", row.needs) is not None
        if whole:  # those whose queries pass by tiles of keys sum dQ over the tiles
            passing, kept = min(row.tile_q, HEAD_BLOCK), self.queries
            sums = row.tile_q < row.seqlen_q and self.keys > row.tile_k
        heads_q, key_heads = self.heads, self.heads if whole else 1
        args = Arguments(window_left=self.window[0], window_right=self.window[1], batch=1, splits=1)
        args.heads_q, args.heads_k = heads_q, key_heads
        dim = (min(row.dim_qk, 128) if scores else row.dim_qk) - self.narrower
        args.seqlen_q, args.seqlen_k, args.dim_qk, args.dim_v = self.queries, self.keys, dim, min(row.dim_v, dim)
        args.softmax_scale, args.rows_per_task = dim**-0.5, passing
        args.lse_by_scale = "kTakesLseByScale" in row.needs
        args.softcap, args.dropout_p, args.dropout_threshold = self.softcap, self.dropout, int(self.dropout * 65536)
        if self.state:
            args.dropout_state = session.buffer(np.array([1, 2], np.uint64)).address
        args.tasks = -(-self.keys // kept) if of_keys else -(-self.queries // kept) * heads_q
        if self.ordered:  # kOrdersByHeads: one workgroup has all keys; waves with the same columns have their own sums
            args.in_order, args.tasks = 1, 1
            args.splits = row.threads // 64 * 32 // (64 if row.dim_qk <= 64 else 128)
        args.dq_columns = row.dim_qk * args.splits if sums else 0
        for name in ("q", "o", "d_o", "dq", "k", "v", "dk", "dv"):
            heads, length = (heads_q, self.queries) if name in ("q", "o", "d_o", "dq") else (key_heads, self.keys)
            array, dtype = rng.standard_normal((length, heads * dim)), self.dtype
            if name == "o" and self.out:
                array, dtype = array.astype(np.float32), self.out
            else:
                array = self.bits(array)
            strides = (I64 * 4)(array.size, heads * dim, dim, 1)
            address = 0 if name in self.unwanted else session.buffer(array).address
            setattr(args, name, Tensor(address, strides, dtype, length))
        self.set_lengths(session, args)
        lse = session.buffer(np.full((self.queries, heads_q), 0.5, np.float32))
        args.lse = Tensor(lse.address, (I64 * 4)(heads_q * self.queries, heads_q, 1, 1), FLOAT, self.queries)
        if self.d_lse:
            args.d_lse = args.lse
        block = passing * 8 + 128 + passing * args.dq_columns * 4  # kernels/abi/backward_blocks.h
        blocks = np.full(
            32 + (-(-self.queries // passing) + self.ragged) * heads_q * block // 4, self.numbers, np.float32
        )
        if self.bias or scores:  # one for both heads
            kind = np.uint16 if self.bias in (F16, BF16) else np.float32
            entries = session.buffer(np.zeros((self.queries, self.keys), kind))
            strides = (I64 * 4)(0, 0, self.keys * (not self.summed), not self.summed)
            args.bias = Tensor(entries.address, strides, self.bias or FLOAT)
        if self.alibi or scores:
            args.alibi_slopes = session.buffer(np.full(2, 0.1, np.float32)).address
        if scores:  # kernels/abi/score_gradients.h: one sum for both heads; or parts, the last floats of the memory
            args.d_bias, args.d_slopes = args.bias, args.alibi_slopes
            tiles = -(-self.queries // row.tile_q)
            waves = tiles * (-(-self.keys // row.tile_k) if row.op == "kDBias" else 2)
            args.tasks = -(-waves // SCORE_WAVES)
            blocks = np.concatenate([blocks, np.zeros(2 * tiles, np.float32)])
            args.workspace_bytes = blocks.nbytes
        args.shared = session.buffer(blocks).address
        return session.run(code, row.name, args.tasks, row.threads, [bytes(args)], check=False)

    def set_lengths(self, session, args):
        """Lengths and places from memory: all rows but a few keys."""

        def numbers(*values):
            return session.buffer(np.array(values, np.int32)).address

        if self.ragged:
            args.cu_seqlens_q, args.cu_seqlens_k = numbers(0, self.queries), numbers(0, self.keys)
        if self.padded:
            args.leftpad_k, args.cache_batch_idx = numbers(9), numbers(0)
        if self.ragged or self.padded:
            args.seqused_k = numbers(self.keys - 12)


class PassLaunch:
    """Of the passes before and after the main kernel of a backward: blocks of 32 queries of two heads of `columns`.

    ragged: two sequences, one of 5 queries; parts: sums of dQ that are added; numbers: what is in the blocks."""

    def __init__(self, row, queries, ragged=False, columns=192, dtype=BF16, parts=1, numbers=0.5, **more):
        self.row, self.queries, self.ragged, self.columns, self.dtype = row, queries, ragged, columns, dtype
        self.keys, self.parts, self.numbers = columns, parts, numbers
        self.out, self.d_lse = more.pop("out", dtype), more.pop("d_lse", False)
        self.gradients = {name: more.pop(name, False) for name in ("d_sinks", "d_slopes")}
        self.by_batch = more.pop("by_batch", False)  # slopes of each sequence
        self.fields = more  # of Arguments

    def run(self, session, code):
        rng, batch, heads, block = np.random.default_rng(1), 1 + self.ragged, 2, HEAD_BLOCK
        args = Arguments(batch=batch, heads_q=heads, heads_k=heads, seqlen_q=self.queries, splits=self.parts)
        args.dim_qk = args.dim_v = self.columns
        args.softmax_scale, args.rows_per_task = self.columns**-0.5, block
        for name, value in self.fields.items():
            setattr(args, name, value)
        if self.ragged:
            args.cu_seqlens_q = session.buffer(np.array([0, 5, self.queries], np.int32)).address
        for name, dtype, width in (
            *((name, self.dtype, self.columns) for name in ("q", "d_o", "dq")),
            ("o", self.out, self.columns),
            *((name, FLOAT, 1) for name in ("lse", "d_lse")),
        ):
            array = rng.standard_normal((self.queries, heads * width)).astype(np.float32)
            array = array if dtype == FLOAT else np.float16(array).view(np.uint16) if dtype == F16 else bf16(array)
            if name != "d_lse" or self.d_lse:
                strides = (I64 * 4)(array.size, heads * width, width, 1)
                setattr(args, name, Tensor(session.buffer(array).address, strides, dtype, self.queries))
        args.dq_columns = self.columns * self.parts
        blocks = batch * -(-self.queries // block) * heads
        args.tasks = heads if self.row.op == "kSums" else blocks
        floats = 32 + blocks * (block * 2 + 32 + block * args.dq_columns)  # kernels/abi/backward_blocks.h
        shared = np.full(floats + batch * heads * -(-self.queries // block), self.numbers, np.float32)
        args.workspace_bytes, args.shared = shared.nbytes, session.buffer(shared).address
        args.alibi_batch_stride = heads * self.by_batch
        for name in ("sinks", *(name for name, wanted in self.gradients.items() if wanted)):
            setattr(args, name, session.buffer(np.ones(batch * heads, np.float32)).address)
        return session.run(code, self.row.name, args.tasks, self.row.threads, [bytes(args)], check=False)


EVERYTHING = (NO_WINDOW, NO_WINDOW)


def forward_launches(row):
    tiles = 3 * row.tile_k
    return [
        Launch(row, row.tile_q + 40, tiles + 40),  # a diagonal, a last tile that is not whole
        Launch(row, row.tile_q + 40, tiles, window=(16, 0)),  # waves that only move data, before and after
        Launch(row, 20, tiles, window=EVERYTHING, ramp=True),  # overflow
        Launch(row, row.tile_q + 40, 24),  # a workgroup without keys
    ]


def backward_launches(row):
    few, many = sorted((row.tile_q, row.tile_k))
    if row.seqlen_q:  # the longest that it takes
        few, many = HEAD_BLOCK, row.seqlen_q - 60
    everything = {"window": EVERYTHING}
    every = {"alibi": True, "softcap": 20.0, "dropout": 0.25, "bias": FLOAT} if row.modified else {}
    runs = [
        BackwardLaunch(row, many + 40, many + 40, **every),  # a diagonal, last tiles that are not whole
        BackwardLaunch(row, 3 * few, many, **everything, **every),  # no mask, the next head
        BackwardLaunch(row, 20, 2 * many, window=(8, 0), **every),  # keys that no query sees
        BackwardLaunch(row, 2 * few + 5, many - 20, ragged=True, **every),
        BackwardLaunch(row, 2 * few + 5, many - 20, padded=True, **every),
        BackwardLaunch(row, 2 * few + 5, many - 20, ragged=True, padded=True, **every),
        BackwardLaunch(row, few + 5, 12, ragged=True, **every),  # none of the keys is used
    ]
    if "Rdna" in row.isa:
        runs += [
            BackwardLaunch(row, few - 3, few - 3, **everything, **every),  # a head that is one tile
            BackwardLaunch(row, 2 * few + 5, 2 * few + 5, narrower=24, **everything, **every),
            BackwardLaunch(row, 2 * few, 2 * few, unwanted=("dq", "dk", "dv"), **everything, **every),
            # An odd number of tiles, of which the last one has code of its own on RDNA4.
            BackwardLaunch(row, 3 * few, 3 * few, heads=1, **every),
            BackwardLaunch(row, 2 * few + 5, 2 * few + 5, heads=1, narrower=24, **everything, **every),
            BackwardLaunch(row, few - 3, few - 3, heads=1, **everything, **every),
            BackwardLaunch(row, few - 3, many - 20, heads=1, padded=True, **every),
        ]
    if row.seqlen_q:  # it computes delta, too
        runs += [
            BackwardLaunch(row, many + 40, few + 5, d_lse=True),
            BackwardLaunch(row, many + 40, few + 5, out=FLOAT, d_lse=True, ragged=True),
            BackwardLaunch(row, few + 5, few + 5, d_lse=True),
            BackwardLaunch(row, few + 5, few + 5, out=FLOAT, d_lse=True, ragged=True),
            BackwardLaunch(row, many + 40, few + 5, out=FLOAT),
        ]
    if "kOrdersByHeads" in row.needs:
        runs.append(BackwardLaunch(row, 2 * few, 2 * many, ordered=True, **every))
    both = many + 40, many + 40
    if row.op in ("kDBias", "kDSlopes"):  # one kernel for both types, every type of bias and every modifier
        runs += [
            BackwardLaunch(row, *both, dtype=F16, bias=F16, softcap=20.0),
            BackwardLaunch(row, *both, bias=BF16, dropout=0.25),
            BackwardLaunch(row, *both, dtype=F16, softcap=20.0, dropout=0.25),
            BackwardLaunch(row, *both, bias=F16, softcap=20.0, dropout=0.25, state=True, ragged=True, heads=1),
            BackwardLaunch(row, *both, dtype=F16, bias=BF16, dropout=0.25, state=True, padded=True),
            BackwardLaunch(row, *both, dtype=F16, ragged=True),
            BackwardLaunch(row, *both, dtype=F16, ragged=True, padded=True),
            BackwardLaunch(row, *both, bias=BF16, summed=True),
            BackwardLaunch(row, *both, dtype=F16, bias=F16, summed=True),
        ]
        # The numbers of a row are waited for where a lane needs them. Queries of which none sees the first 16 keys of
        # a tile; the last 16 rows of a tile that are not there, the first 16 that see nothing.
        runs += [
            BackwardLaunch(row, queries, keys, window=window, dtype=dtype)
            for queries, keys, window in (
                (20, 44, (8, 0)),
                (20, 2 * many, (8, 0)),
                (12, 44, EVERYTHING),
                (36, 8, (8, 0)),
            )
            for dtype in (BF16, F16)
        ]
    # Each modifier alone, which has a loop of its own on RDNA; then what else a score can meet.
    alone = [{"alibi": True}, {"softcap": 20.0}, {"dropout": 0.25}, {"bias": FLOAT}, {"bias": BF16}]
    alone += [{"bias": F16}] if "_f16_" in row.name else []  # a bias of the type of Q has one, too
    for modifiers in alone if row.modified else ():
        runs += [
            BackwardLaunch(row, *both, **modifiers),
            BackwardLaunch(row, 2 * few, 2 * few, **everything, **modifiers),
            BackwardLaunch(row, 3 * few, 3 * few, heads=1, **everything, **modifiers),
            BackwardLaunch(row, few - 3, few - 3, heads=1, **modifiers),
        ]
    if row.modified:  # with one head RDNA4 has a last tile without a partner
        runs += [
            BackwardLaunch(row, *both, softcap=100.0, bias=F16),
            BackwardLaunch(row, *both, softcap=100.0, bias=F16, heads=1),
            BackwardLaunch(row, *both, dropout=0.25, state=True),
            # CDNA draws element by element where a left pad shifts the keys; no wait for a bias comes before.
            BackwardLaunch(row, *both, dropout=0.25, padded=True),
            BackwardLaunch(row, *both, dropout=0.25, state=True, bias=BF16, padded=True, heads=1),
            BackwardLaunch(row, *both, dropout=0.25, state=True, alibi=True, softcap=20.0),
            BackwardLaunch(row, *both, dropout=0.25, alibi=True, softcap=100.0, heads=1),
            BackwardLaunch(row, *both, bias=FLOAT, numbers=2e38),
            BackwardLaunch(row, *both, bias=F16, numbers=2e38),
            BackwardLaunch(row, *both, bias=BF16, softcap=20.0, numbers=2e38, heads=1),
            # Columns that are not there are cleared in the next tile, where no wait for a bias came before.
            BackwardLaunch(row, 3 * few, 3 * few, softcap=20.0, narrower=24, **everything),
        ]
    return runs


def pass_launches(row):
    both = [{"dtype": dtype, "ragged": ragged} for dtype in (F16, BF16) for ragged in (False, True)]
    if row.op == "kPrepare":
        more = [{}, {"out": FLOAT, "d_lse": True}, {"lse_by_scale": 1}, {"softcap": 20.0, "dropout_threshold": 9}]
    elif row.op == "kFinish":
        more = [{}, {"parts": 2}, {"columns": 64}]
    else:
        sinks, slopes, by_batch = {"d_sinks": True}, {"d_slopes": True}, {"d_slopes": True, "by_batch": True}
        more = [sinks, slopes, by_batch, {**sinks, **by_batch}, {**sinks, **slopes, "lse_by_scale": 1}]
        more += [{**sinks, "softcap": 20.0, "dropout_threshold": 9}, {**sinks, **slopes, "batch": 0}]
    return [PassLaunch(row, queries, **which, **also) for queries in (20, 300) for which in both for also in more]


def launches_of(row):
    """That together execute nearly all of a kernel."""
    if row.op in ("kPrepare", "kFinish", "kSums"):
        return pass_launches(row)
    return forward_launches(row) if row.op == "kForward" else backward_launches(row)

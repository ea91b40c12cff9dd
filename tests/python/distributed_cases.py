"""What the processes of test_distributed.py do: every case is run by all of them, against a single process' result."""

from __future__ import annotations

import datetime
import os
import sys
import time
import traceback
from typing import Any, Callable

import torch
import torch.distributed as dist

import flashwave
from flashwave import distributed as fd

CASES: dict[str, Callable[[], None]] = {}
DENSE = {"ring": fd.ring_attention, "allgather": fd.allgather_attention, "ulysses": fd.ulysses_attention}
PACKED = {
    "ring": fd.ring_attention_varlen,
    "allgather": fd.allgather_attention_varlen,
    "ulysses": fd.ulysses_attention_varlen,
}
TIMEOUT = 6.0  # seconds: of the group in which a process fails


def case(function: Callable[[], None], name: str | None = None) -> Callable[[], None]:
    CASES[name or function.__name__] = function
    return function


def close(actual: torch.Tensor, expected: torch.Tensor, what: str, exact: bool = False) -> None:
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)}, not {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
    if exact:
        assert torch.equal(actual, expected), f"{what}: other bits, by {(actual - expected).abs().max():.3g}"
        return
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}[actual.dtype]
    same = actual == expected  # infinities, too
    error = torch.where(same, 0, (actual - expected).abs()).max().item() if actual.numel() else 0.0
    largest = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 1.0
    assert error <= tolerance * max(1.0, largest), f"{what}: off by {error:.3g} of {largest:.3g}"


def leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


# ------------------------------------------------------------------------------------------------------- dense batches

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (13, 5)},
    "left_window": {"window_size": (9, 0), "causal": True},
    "softcap": {"softcap": 3.0, "causal": True},
    "scale": {"softmax_scale": 0.3},
    "alibi": {"alibi_slopes": "h", "causal": True},
    "alibi_batch": {"alibi_slopes": "bh"},
    "sinks": {"sinks": True, "causal": True},
    "sinks_window": {"sinks": True, "window_size": (3, 0), "causal": True},
    "bias": {"bias": "full", "causal": True},
    "bias_keys": {"bias": "keys"},
    "dropout": {"dropout_p": 0.3, "causal": True},
    "dropout_alibi_window": {"dropout_p": 0.2, "window_size": (20, 3), "alibi_slopes": "h"},
    "everything": {
        "causal": True,
        "window_size": (21, 0),
        "softcap": 5.0,
        "alibi_slopes": "h",
        "sinks": True,
        "bias": "full",
        "dropout_p": 0.1,
        "softmax_scale": 0.2,
        "deterministic": True,
    },
}


def dense(kind: str, feature: str, layout: str, dtype: torch.dtype = torch.float32, heads_k: int | None = None) -> None:
    function, world = DENSE[kind], dist.get_world_size()
    torch.manual_seed(7)
    heads = 2 * world if kind == "ulysses" else 4
    heads_k = heads_k or heads // 2
    batch, tokens, dim, dim_v = 2, 12 * world, 16, 24
    q = torch.randn(batch, tokens, heads, dim, dtype=dtype)
    k = torch.randn(batch, tokens, heads_k, dim, dtype=dtype)
    v, weight = torch.randn(batch, tokens, heads_k, dim_v, dtype=dtype), torch.randn(batch, tokens, heads, dim_v)
    options = dict(FEATURES[feature])
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    extras = {}
    if "alibi_slopes" in options:
        shape = (heads,) if options["alibi_slopes"] == "h" else (batch, heads)
        extras["alibi_slopes"] = torch.rand(shape, dtype=exact) * 0.3
    if "sinks" in options:
        extras["sinks"] = torch.randn(heads, dtype=exact)
    bias = None
    if "bias" in options:
        shape = (batch, heads, tokens, tokens) if options["bias"] == "full" else (1, 1, 1, tokens)
        bias = torch.randn(shape, dtype=exact)
    options = {name: value for name, value in options.items() if name not in ("alibi_slopes", "sinks", "bias")}

    whole = leaves(q, k, v, *extras.values(), *([bias] if bias is not None else []))
    names = list(extras)
    state = torch.tensor([12345, 678])
    single = dict(options)
    single["window"] = single.pop("window_size", (-1, -1))
    named = dict(zip(names, whole[3:]))
    if bias is not None:
        named["bias"] = whole[-1]
    if single.get("dropout_p"):
        single["rng_state"] = state
    expected, expected_lse = flashwave.attention(*whole[:3], **named, **single, return_lse=True)
    seen = expected_lse.masked_fill(expected_lse == -torch.inf, 0)
    ((expected * weight).sum() + 0.1 * seen.sum()).backward()

    def own(x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        return fd.shard(x, dim, layout=layout)

    local = leaves(own(q), own(k), own(v), *extras.values())
    given = dict(zip(names, local[3:]))
    if bias is not None:
        local += leaves(own(bias, 2) if bias.shape[2] > 1 else bias)
        given["bias"] = local[-1]
    drawn = {"rng_state": state} if options.get("dropout_p") else {}
    out, lse = function(*local[:3], **given, **options, **drawn, return_lse=True, layout=layout)
    close(out, own(expected), "out")
    close(lse, own(expected_lse.masked_fill(expected_lse == -torch.inf, torch.inf), 2), "lse")
    ((out * own(weight)).sum() + 0.1 * lse.masked_fill(lse == torch.inf, 0).sum()).backward()
    for name, shard, total in zip("qkv", local, whole):
        close(shard.grad, own(total.grad), f"gradient of {name}")
    for name, part, total in zip(names, local[3:], whole[3:]):
        gradient = part.grad.clone()
        dist.all_reduce(gradient)  # of what every process has, as of any weight
        close(gradient, total.grad, f"gradient of {name}")
    if bias is not None:
        gradient, wanted = local[-1].grad.clone(), whole[-1].grad
        if bias.shape[2] == 1:
            dist.all_reduce(gradient)
        else:
            wanted = own(wanted, 2)
        close(gradient, wanted, "gradient of bias")


for _kind in DENSE:
    for _layout in fd.LAYOUTS:
        for _feature in FEATURES:
            case(lambda a=_kind, b=_feature, c=_layout: dense(a, b, c), f"{_kind}-{_layout}-{_feature}")
    for _dtype in (torch.bfloat16, torch.float16, torch.float64):
        _name = str(_dtype).rpartition(".")[2]
        case(lambda a=_kind, d=_dtype: dense(a, "causal", "zigzag", d), f"{_kind}-{_name}")
    case(lambda a=_kind: dense(a, "causal", "zigzag", heads_k=1), f"{_kind}-one-head-of-k")
case(lambda: dense("ulysses", "causal", "contiguous", heads_k=2 * dist.get_world_size()), "ulysses-mha")
case(lambda: dense("ring", "dropout", "zigzag", torch.float64), "ring-dropout-float64")


@case
def cross_attention() -> None:
    """More keys than queries, without a mask that would have to know which belong together."""
    world = dist.get_world_size()
    torch.manual_seed(3)
    q, k, v = torch.randn(1, 4 * world, 2 * world, 8), *torch.randn(2, 1, 10 * world, 2 * world, 8)
    expected = flashwave.attention(q, k, v, dropout_p=0.2, rng_state=torch.tensor([1, 2]))
    for function in DENSE.values():
        out = function(*map(fd.shard, (q, k, v)), dropout_p=0.2, rng_state=torch.tensor([1, 2]), layout="zigzag")
        close(out, fd.shard(expected), function.__name__)
    expected = flashwave.attention(q, k, v, causal=True)
    out = fd.ulysses_attention(*[fd.shard(x, layout="contiguous") for x in (q, k, v)], causal=True)
    close(out, fd.shard(expected, layout="contiguous"), "ulysses, causal")


@case
def several_groups_of_heads() -> None:
    """Heads come in several messages where they are worth it."""
    from flashwave.distributed import ring

    before = ring._LEAST_MESSAGE
    ring._LEAST_MESSAGE = 1
    try:
        for kind in ("ring", "allgather"):
            dense(kind, "everything", "zigzag")
            dense(kind, "causal", "zigzag", torch.bfloat16)
            packed(kind, "everything", "zigzag")
    finally:
        ring._LEAST_MESSAGE = before


@case
def parts_of_shards() -> None:
    """Keys of long shards go round a ring in parts, and their gradients with them."""
    from flashwave.distributed import ring

    before = ring._LEAST_MESSAGE, ring._LEAST_PART, ring._ROWS_STEP
    ring._LEAST_MESSAGE = ring._LEAST_PART = 1
    ring._ROWS_STEP = 4  # of 6 or 12 tokens
    try:
        for layout in fd.LAYOUTS:
            for feature in FEATURES:
                dense("ring", feature, layout)
        widest = torch.float64 if torch.get_default_device().type == "cpu" else torch.float32  # of the library's own
        for dtype in (torch.bfloat16, widest):
            dense("ring", "causal", "zigzag", dtype, heads_k=1)
        cross_attention()
    finally:
        ring._LEAST_MESSAGE, ring._LEAST_PART, ring._ROWS_STEP = before


@case
def same_bits_as_one_process() -> None:
    world = dist.get_world_size()
    torch.manual_seed(5)
    tokens = 256 * world
    for dtype in (torch.float32, torch.bfloat16):
        for options in ({"causal": True}, {"causal": True, "window_size": (300, 0)}, {"window_size": (70, 30)}, {}):
            q, k, v = (torch.randn(1, tokens, h * world, 32, dtype=dtype) for h in (2, 1, 1))
            expected, lse = flashwave.flash_attn_func(q, k, v, **options, return_lse=True)
            for kind in ("allgather", "ulysses"):
                shards = [fd.shard(x, layout="zigzag") for x in (q, k, v)]
                out, own_lse = DENSE[kind](*shards, **options, layout="zigzag", deterministic=True, return_lse=True)
                close(out, fd.shard(expected), f"{kind} {dtype} {options}", exact=True)
                close(own_lse, fd.shard(lse, 2), f"{kind} lse", exact=True)
    # A ring adds in an order of its own, always the same one.
    shards = [fd.shard(x) for x in (q, k, v)]
    first, second = (fd.ring_attention(*shards, causal=True) for _ in range(2))
    close(first, second, "ring", exact=True)


# ------------------------------------------------------------------------------------------------------ packed streams


def packed(kind: str, feature: str, layout: str, dtype: torch.dtype = torch.float32) -> None:
    function, world = PACKED[kind], dist.get_world_size()
    torch.manual_seed(11)
    heads = 2 * world if kind == "ulysses" else 4
    tokens, dim = 40 * world, 16
    lengths = [5, 1, 0, tokens - 31, 7, 18]  # one over several shards, some inside one, one that is empty
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    longest = max(lengths)
    q = torch.randn(tokens, heads, dim, dtype=dtype)
    k, v = torch.randn(2, tokens, heads // 2, dim, dtype=dtype)
    weight = torch.randn(tokens, heads, dim)
    options = dict(FEATURES[feature])
    extras = {}
    if "alibi_slopes" in options:
        shape = (heads,) if options["alibi_slopes"] == "h" else (len(lengths), heads)
        extras["alibi_slopes"] = torch.rand(shape) * 0.3
    if "sinks" in options:
        extras["sinks"] = torch.randn(heads)
    if "bias" in options:
        full = (len(lengths), heads, longest, longest)
        extras["bias"] = torch.randn(full if options["bias"] == "full" else (1, 1, 1, longest))
    options = {name: value for name, value in options.items() if name not in extras}
    names = list(extras)
    whole = leaves(q, k, v, *extras.values())
    state = torch.tensor([99, 7])
    single = dict(options)
    single["window"] = single.pop("window_size", (-1, -1))
    if single.get("dropout_p"):
        single["rng_state"] = state
    ragged = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": longest, "max_seqlen_k": longest}
    expected, expected_lse = flashwave.attention(
        *whole[:3], **ragged, **dict(zip(names, whole[3:])), **single, return_lse=True
    )
    (expected * weight).sum().backward()

    def own(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return fd.shard(x, dim, layout=layout)

    local = leaves(own(q), own(k), own(v), *extras.values())
    drawn = {"rng_state": state} if options.get("dropout_p") else {}
    given = dict(zip(names, local[3:]))
    out, lse = function(
        *local[:3], offsets, offsets, longest, longest, **given, **options, **drawn, return_lse=True, layout=layout
    )
    close(out, own(expected), "out")
    close(lse, own(expected_lse.masked_fill(expected_lse == -torch.inf, torch.inf), 1), "lse")
    (out * own(weight)).sum().backward()
    for name, shard, total in zip("qkv", local, whole):
        close(shard.grad, own(total.grad), f"gradient of {name}")
    for name, part, total in zip(names, local[3:], whole[3:]):
        gradient = part.grad.clone()
        dist.all_reduce(gradient)
        close(gradient, total.grad, f"gradient of {name}")


for _kind in PACKED:
    for _layout in fd.LAYOUTS:
        for _feature in FEATURES:
            case(lambda a=_kind, b=_feature, c=_layout: packed(a, b, c), f"{_kind}-varlen-{_layout}-{_feature}")
    case(lambda a=_kind: packed(a, "causal", "zigzag", torch.bfloat16), f"{_kind}-varlen-bfloat16")


# ------------------------------------------------------------------------------------------------- sharding, and groups


@case
def shard_and_unshard() -> None:
    world = dist.get_world_size()
    for layout in fd.LAYOUTS:
        x = torch.arange(2 * 4 * world * 3.0).view(2, 4 * world, 3).requires_grad_()
        part = fd.shard(x, layout=layout)
        assert part.shape == (2, 4, 3)
        whole = fd.unshard(part, layout=layout)
        assert torch.equal(whole, x)
        (whole * torch.arange(3.0)).sum().backward()
        # Each process uses the whole once, and has a share of it.
        expected = torch.arange(3.0).expand(2, 4, 3) * world
        assert torch.equal(fd.shard(x.grad, layout=layout), expected)
    stream = torch.arange(6 * world)
    assert torch.equal(fd.unshard(fd.shard(stream, 0), 0), stream)


@case
def smaller_groups() -> None:
    """A group that is not all processes, and in which ranks are others."""
    world = dist.get_world_size()
    groups = [dist.new_group([rank]) for rank in range(world)]
    alone = groups[dist.get_rank()]
    q, k, v = torch.randn(3, 1, 8, 2, 8)
    close(
        fd.ring_attention(q, k, v, causal=True, group=alone), flashwave.flash_attn_func(q, k, v, causal=True), "alone"
    )
    if world < 3:
        return
    last = dist.new_group([1, 2])
    if dist.get_rank() in (1, 2):
        torch.manual_seed(1)
        q, k, v = torch.randn(3, 1, 24, 2, 8)
        out = fd.ring_attention(*[fd.shard(x, group=last) for x in (q, k, v)], causal=True, group=last)
        close(fd.unshard(out, group=last), flashwave.flash_attn_func(q, k, v, causal=True), "group of two")


@case
def dropout_is_drawn_by_the_first_process() -> None:
    torch.manual_seed(100 + dist.get_rank())  # generators that differ
    world = dist.get_world_size()
    x = torch.ones(1, 8 * world, 2, 4)
    first, second = (fd.unshard(fd.ring_attention(*[fd.shard(x)] * 3, dropout_p=0.5)) for _ in range(2))
    assert not torch.equal(first, second)
    everybody = [torch.empty_like(first) for _ in range(world)]
    dist.all_gather(everybody, first)
    assert all(torch.equal(first, other) for other in everybody)


@case
def no_gradient_is_needed() -> None:
    """Only some inputs require one."""
    world = dist.get_world_size()
    torch.manual_seed(2)
    q, k, v = torch.randn(3, 1, 8 * world, 2 * world, 8)
    for wanted in range(3):
        for function in DENSE.values():
            whole, shards = [q, k, v], [fd.shard(x, layout="zigzag") for x in (q, k, v)]
            whole[wanted], shards[wanted] = leaves(whole[wanted])[0], leaves(shards[wanted])[0]
            flashwave.flash_attn_func(*whole, causal=True).square().sum().backward()
            function(*shards, causal=True, layout="zigzag").square().sum().backward()
            close(shards[wanted].grad, fd.shard(whole[wanted].grad), f"{function.__name__} {wanted}")


# ------------------------------------------------------------------------------------------------------------ mistakes


def refused(call: Callable[[], Any], *words: str) -> None:
    """On every process, with a message that names the rule."""
    started = time.monotonic()
    try:
        call()
    except (flashwave.InvalidArgument, flashwave.Unsupported) as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {str(error)!r}"
    else:
        raise AssertionError(f"nothing was refused: {words}")
    assert time.monotonic() - started < 5, "it took a timeout to be noticed"
    dist.barrier()  # all are still there, and nothing is under way


def _shards(tokens: int = 8, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(1, tokens, 2 * dist.get_world_size(), 8, dtype=dtype) for _ in range(3)]


@case
def unequal_shards_are_refused() -> None:
    tokens = 8 if dist.get_rank() else 6
    for function in DENSE.values():
        refused(
            lambda function=function: function(*_shards(tokens)),
            "q must have the same shape and dtype on all processes",
            "process 1",
        )


@case
def mixed_dtypes_are_refused() -> None:
    dtype = torch.bfloat16 if dist.get_rank() == 1 else torch.float32
    for function in DENSE.values():
        refused(
            lambda function=function: function(*_shards(8, dtype)),
            "same shape and dtype",
            "torch.bfloat16 on process 1",
        )


@case
def other_options_are_refused() -> None:
    causal = dist.get_rank() == 1
    refused(lambda: fd.ring_attention(*_shards(), causal=causal), "options must be the same on all processes")
    layout = "zigzag" if dist.get_rank() else "contiguous"
    refused(lambda: fd.ring_attention(*_shards(), layout=layout), "layout must be the same")
    function = fd.ring_attention if dist.get_rank() else fd.allgather_attention
    refused(lambda function=function: function(*_shards()), "function must be the same")


@case
def a_mistake_on_one_process_is_told_to_all() -> None:
    q, k, v = _shards()
    if dist.get_rank() == 1:
        refused(lambda: fd.ring_attention(q, k[..., :5], v), "k and v must have")
    else:
        refused(
            lambda: fd.ring_attention(q, k, v), "process 1 of the group failed", "InvalidArgument: k and v must have"
        )


@case
def odd_shards_are_refused() -> None:
    for function in DENSE.values():
        refused(lambda function=function: function(*_shards(7), layout="zigzag"), "must have an even number of tokens")
    refused(lambda: fd.shard(torch.zeros(1, 2 * dist.get_world_size() + 1)), "must be divisible by", "pad the sequence")
    refused(lambda: fd.ring_attention(*_shards(), layout="spiral"), "layout must be one of zigzag, contiguous")


@case
def shards_that_cannot_be_joined_are_refused() -> None:
    """Whole numbers, too: labels and positions are sharded as well."""
    dtype = torch.int32 if dist.get_rank() == 1 else torch.int64
    refused(lambda: fd.unshard(torch.zeros(1, 4, dtype=dtype)), "x must have the same shape and dtype")
    refused(lambda: fd.unshard(torch.zeros(1, 4 + 2 * dist.get_rank())), "x must have the same shape and dtype")
    refused(lambda: fd.unshard(torch.zeros(4)), "tokens along dimension 1")
    layout = "zigzag" if dist.get_rank() else "contiguous"
    refused(lambda: fd.unshard(torch.zeros(1, 4), layout=layout), "layout must be the same")


@case
def a_shard_that_is_odd_on_one_process_is_told_to_all() -> None:
    own = dist.get_rank() == 1
    words = ["must have an even number of tokens"] if own else ["process 1 of the group failed", "even number"]
    refused(lambda: fd.unshard(torch.zeros(1, 3 if own else 4)), *words)
    refused(lambda: fd.ring_attention(*_shards(3 if own else 4)), *words)


@case
def an_output_that_does_not_fit_is_told_to_all() -> None:
    q, k, v = _shards()
    own = dist.get_rank() == 1
    out = torch.empty(2, *q.shape[1:]) if own else torch.empty_like(q)
    words = ["out must be"] if own else ["process 1 of the group failed", "out must be"]
    for function in DENSE.values():
        refused(lambda function=function: function(q, k, v, out=out), *words)


@case
def what_is_no_tensor_is_told_to_all() -> None:
    q, k, v = _shards()
    own = dist.get_rank() == 1
    words = ["k must be a torch tensor"] if own else ["process 1 of the group failed", "k must be a torch tensor"]
    for function in DENSE.values():
        refused(lambda function=function: function(q, "keys" if own else k, v), *words)


@case
def a_group_of_others_is_refused() -> None:
    """By those that are not in it; the others are not kept waiting."""
    first = dist.new_group([0])
    shards = [x[:, :, :2] for x in _shards()]
    for function in (*DENSE.values(), fd.unshard):
        arguments = shards[:1] if function is fd.unshard else shards
        if dist.get_rank() == 0:
            function(*arguments, group=first)
            dist.barrier()
        else:
            refused(
                lambda function=function, arguments=arguments: function(*arguments, group=first),
                "group must be one that this process belongs to",
            )


@case
def heads_that_cannot_be_shared_are_refused() -> None:
    q = torch.randn(1, 8, dist.get_world_size() + 1, 8)
    refused(lambda: fd.ulysses_attention(q, q, q), "multiple of the processes of the group", "ring_attention takes any")


@case
def wrong_offsets_are_refused() -> None:
    q = torch.randn(8, 2 * dist.get_world_size(), 8)
    offsets = torch.tensor([0, 8], dtype=torch.int32)  # of the shard alone
    for function in PACKED.values():
        refused(lambda function=function: function(q, q, q, offsets, offsets, 8, 8), "tokens of all shards together")


@case
def other_lengths_under_a_mask_are_refused() -> None:
    q, k, v = *_shards(4)[:1], *_shards(8)[:2]
    for function in (fd.ring_attention, fd.allgather_attention):
        refused(lambda function=function: function(q, k, v, causal=True), "as many keys as queries")


@case
def the_matrix_of_weights_is_refused() -> None:
    refused(lambda: fd.ring_attention(*_shards(), dropout_p=0.5, return_attn_probs=True), "no matrix to give")


def a_process_that_fails_is_noticed() -> None:
    """In its own part of the work, after data has begun to flow: the others wait as long as the group allows."""
    from flashwave import pieces

    add = pieces.add

    def failing(*arguments: Any) -> None:
        if dist.get_rank() == 1:
            raise MemoryError("of this process alone")
        add(*arguments)

    pieces.add = failing
    started = time.monotonic()
    try:
        # With many steps, everybody depends on the one that stopped.
        out = fd.ring_attention(*_shards(64), layout="contiguous")
        fd.unshard(out, layout="contiguous")
    except Exception as error:
        waited = time.monotonic() - started
        assert waited < 5 * TIMEOUT, f"{waited:.0f} s until {error}"
        assert dist.get_rank() != 1 or isinstance(error, MemoryError)
        return
    finally:
        pieces.add = add
    raise AssertionError("a process failed, and nobody noticed")


def main(rank: int, world: int, file: str, results: Any, backend: str = "gloo", device: str = "cpu") -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.set_default_device(device)
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=world, timeout=patience)
    for name, function in CASES.items():
        if device != "cpu":  # not Triton, which would compile a kernel for each of them
            os.environ["FLASHWAVE_BACKEND"] = "torch" if "float64" in name else "native"
        try:
            if world > 1 or not name.endswith(("refused", "told_to_all")):  # alone there is nobody to differ from
                function()
            error = None
        except BaseException:
            error = traceback.format_exc()
        results.put((name, rank, error))
        if error is not None:
            sys.stderr.write(f"process {rank} failed in {name}\n{error}\n")
            break  # the others may be waiting for it
    dist.destroy_process_group()


def main_of_failures(rank: int, world: int, file: str, results: Any) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=patience)
    try:
        a_process_that_fails_is_noticed()
        error = None
    except BaseException:
        error = traceback.format_exc()
    results.put(("a_process_that_fails_is_noticed", rank, error))
    results.close()
    results.join_thread()
    os._exit(0)  # the group is broken: nothing to take leave of

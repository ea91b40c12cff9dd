"""Calls of everything that is not attention by itself: rotary, modules, NumPy, staging, the stand-in, transformers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import flashwave
import flashwave.compat.flash_attn.bert_padding as padding
import flashwave.compat.flash_attn.flash_attn_interface as raw
from flashwave.compat.flash_attn.ops.triton.cross_entropy import cross_entropy_loss

from . import reference
from .calls import INF, Call, Options, as_flash_attn, indices
from .world import World

try:
    from flashwave.integrations.transformers import attention_forward
except ImportError:  # transformers is not installed
    attention_forward = None

# ------------------------------------------------------------------------------------------------------------- rotary


def rotary(world: World) -> Call:
    rng, n = world.rng, world.sizes
    batch, rows, dim = max(1, n.batch), max(1, n.queries), max(2, n.dim)
    pairs, offset = rng.randint(1, dim // 2), rng.randrange(3)
    angles = world.normal(rows + offset + 2, pairs, dtype=torch.float32)
    cos, sin = angles.cos().to(world.dtype), angles.sin().to(world.dtype)
    interleaved = rng.random() < 0.5
    kind = rng.choice(("x", "x", "in place", "qkv", "kv", "module"))
    parts = {"qkv": 3, "kv": 2, "module": 3}.get(kind, 0)
    shape = (batch, rows, parts, n.heads, dim) if parts else (batch, rows, n.heads, dim)
    x = world.tensor(*shape)
    notes, refused, offsets = [kind, f"pairs={pairs} offset={offset} interleaved={interleaved}"], "", [offset] * batch
    given: Any = offset
    if rng.random() < 0.3:
        offsets = [rng.randint(0, offset) for _ in range(batch)]
        given, refused = indices(world, offsets, "seqlen_offsets")
    if kind == "module":
        refused, offsets, given = "", [offset] * batch, offset
        module = flashwave.RotaryEmbedding(2 * pairs, interleaved=interleaved)
        positions = torch.arange(rows + offset, dtype=torch.float32)[:, None]
        inverse = 1.0 / 10000.0 ** (torch.arange(0, 2 * pairs, 2, dtype=torch.float32) / (2 * pairs))
        angles = positions * inverse
        cos, sin = angles.cos().to(world.dtype), angles.sin().to(world.dtype)

    def run(x: Tensor) -> tuple:
        if kind == "x":
            return (flashwave.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=given),), None
        y = x.clone()  # these write to it
        if kind == "in place":
            return (flashwave.apply_rotary_emb(y, cos, sin, interleaved, True, given),), None
        if kind == "kv":
            return (flashwave.apply_rotary_emb_kv_(y, cos, sin, interleaved, given),), None
        if kind == "module":
            return (module(y, seqlen_offset=given),), None
        return (flashwave.apply_rotary_emb_qkv_(y, cos, sin, interleaved=interleaved, seqlen_offsets=given),), None

    def expected(_: None, x: Tensor) -> tuple:
        positions = torch.tensor(offsets)[:, None] + torch.arange(rows)
        turn = functools.partial(reference.rotated, cos=cos.double(), sin=sin.double(), positions=positions,
                                 interleaved=interleaved)  # fmt: skip
        if not parts:
            return (turn(x),)
        split = list(x.unbind(2))
        for part in range(1 if kind == "kv" else 2):
            split[part] = turn(split[part])
        return (torch.stack(split, 2),)

    return Call(f"rotary {kind}", [x], run, expected, notes, must_refuse=refused)


# -------------------------------------------------------------------------------------------------- modules, padding


def module(world: World) -> Call:
    rng, n = world.rng, world.sizes
    batch, rows, width = max(1, n.batch), max(1, n.queries), n.heads * n.dim
    causal, masked = rng.random() < 0.5, rng.random() < 0.6
    torch.manual_seed(rng.getrandbits(30))
    layer = flashwave.FlashMHA(width, n.heads, causal=causal, num_heads_k=n.heads_k, device="cpu", dtype=world.dtype)
    layer.requires_grad_(False)
    mask = torch.tensor([[world.pick.random() < 0.7 for _ in range(rows)] for _ in range(batch)])
    mask = world.buffer("key_padding_mask", mask) if masked else None
    weights = [p.detach().double() for p in layer.parameters()]
    tokens = mask.clone() if masked else torch.ones(batch, rows, dtype=torch.bool)

    def run(x: Tensor) -> tuple:
        return (layer(x, mask)[0],), None

    def expected(_: None, x: Tensor) -> tuple:
        heads = (x @ weights[0].T + weights[1]).unflatten(-1, (-1, n.dim))
        q, k, v = heads.split((n.heads, n.heads_k, n.heads_k), 2)
        result = []
        for b in range(batch):  # padding attends to nothing, is attended by nothing
            row = tokens[b]
            one = reference.attention(q[b : b + 1, row], k[b : b + 1, row], v[b : b + 1, row], causal=causal).out[0]
            result.append(torch.zeros(rows, n.heads, n.dim, dtype=x.dtype).index_put((row.nonzero()[:, 0],), one))
        return (torch.stack(result).flatten(2) @ weights[2].T + weights[3],)

    notes = [f"causal={causal} mask={tokens.tolist() if masked else None}"]
    return Call("FlashMHA", [world.tensor(batch, rows, width)], run, expected, notes)


def unpadded(world: World) -> Call:
    n = world.sizes
    batch, rows = max(1, n.batch), max(1, n.queries)
    tokens = torch.tensor([[world.pick.random() < 0.6 for _ in range(rows)] for _ in range(batch)])
    mask = world.buffer("unpad mask", tokens.long())

    def run(x: Tensor) -> tuple:
        kept, where, offsets, longest, _ = padding.unpad_input(x, mask)
        assert offsets.tolist() == [0, *tokens.sum(1).cumsum(0).tolist()] and longest == int(tokens.sum(1).max())
        return (kept, padding.pad_input(kept, where, batch, rows)), None

    def expected(_: None, x: Tensor) -> tuple:
        return x[tokens], x * tokens[:, :, None, None]

    x = world.tensor(batch, rows, n.heads, n.dim)
    return Call("unpad_input", [x], run, expected, [f"{tokens.tolist()}"])


# -------------------------------------------------------------------------------------------- NumPy, staged devices


def staged(world: World) -> Call:
    """attention(device=...): through the library's own memory, whatever torch's defaults are."""
    rng, n = world.rng, world.sizes
    shapes = ((n.queries, n.heads, n.dim), (n.keys, n.heads_k, n.dim), (n.keys, n.heads_k, n.dim_v))
    first = [world.tensor(n.batch, *shape) for shape in shapes]
    options = Options(world, n.batch, n.queries, n.keys)
    if "window_size" in options.given:
        options.given["window"] = options.given.pop("window_size")
    probs = rng.random() < 0.3

    def run(*arguments: Tensor) -> tuple:
        leading, given, _ = options.split(arguments)
        return tuple(flashwave.attention(*leading, device="cpu", return_lse=True, return_probs=probs, **given)), None

    def expected(_: None, *arguments: Tensor) -> tuple:
        leading, _, known = options.split(arguments)
        return tuple(reference.attention(*leading, **known))[: 3 if probs else 2]

    call = Call("attention(device=)", first + options.inputs, run, expected, options.notes, differentiable=False)
    call.may_refuse = (flashwave.Unsupported, flashwave.InvalidArgument) if world.dtype == torch.float64 else ()
    call.cast = 3
    return call


def numpy(world: World) -> Call:
    rng, n = world.rng, world.sizes
    dtype = world.dtype if world.dtype in (torch.float32, torch.float16) else torch.float32
    shapes = ((n.queries, n.heads, n.dim), (n.keys, n.heads_k, n.dim), (n.keys, n.heads_k, n.dim_v))
    first = [world.tensor(n.batch, *shape, dtype=dtype) for shape in shapes]
    options = Options(world, n.batch, n.queries, n.keys, scalars=False)
    for name, known in options.names:
        if known == "bias" and options.inputs[options.names.index((name, known))].dtype == torch.bfloat16:
            options.inputs[options.names.index((name, known))] = world.normal(n.queries, n.keys, dtype=torch.float32)
            options.quiet = None
    if "window_size" in options.given:
        options.given["window"] = options.given.pop("window_size")
    backward = options.quiet is None and rng.random() < 0.5
    dout = world.normal(n.batch, n.queries, n.heads, n.dim_v, dtype=dtype)

    def run(*arguments: Tensor) -> tuple:
        leading, given, _ = options.split(arguments)
        leading = [x.detach().resolve_neg().numpy() for x in leading]
        given = {k: x.detach().resolve_neg().numpy() if isinstance(x, Tensor) else x for k, x in given.items()}
        out, lse = flashwave.arrays.attention(*leading, return_lse=True, **given)
        results = (torch.from_numpy(out), torch.from_numpy(lse))
        if backward:
            found = flashwave.arrays.attention_backward(dout.numpy(), *leading, out, lse, **given)
            results += tuple(torch.from_numpy(x) for x in found[:3])
        return results, None

    def expected(_: None, *arguments: Tensor) -> tuple:
        leading, _, known = options.split(arguments)
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in leading]
            result = reference.attention(*leaves, **{k: _constant(x) for k, x in known.items()})
            found = torch.autograd.grad(result.out, leaves, dout.double()) if backward else ()
        return (result.out.detach(), result.lse.detach(), *found)

    call = Call("arrays.attention", first + options.inputs, run, expected, options.notes, differentiable=False)
    call.notes.append("backward" if backward else "")
    return call


def _constant(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


# ------------------------------------------------------------------------------------------------------- the stand-in


def halves(world: World) -> Call:
    """_flash_attn_forward and _flash_attn_backward, which ring attention calls."""
    rng, n = world.rng, world.sizes
    batch, queries, keys = max(1, n.batch), max(1, n.queries), max(1, n.keys)
    shapes = ((queries, n.heads, n.dim), (keys, n.heads_k, n.dim), (keys, n.heads_k, n.dim))
    first = [world.tensor(batch, *shape) for shape in shapes]
    dout = world.tensor(batch, queries, n.heads, n.dim)
    causal, window = rng.random() < 0.5, rng.choice(((-1, -1), (2, 1)))
    scale, softcap = rng.uniform(0.1, 1.0), rng.choice((0.0, 0.0, 1.5))

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple:
        q, k, v = q.detach(), k.detach(), v.detach()
        out, lse, _, state = raw._flash_attn_forward(q, k, v, 0.0, scale, causal, *window, softcap, None, False)
        grads = [torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in (q, k, v)]
        raw._flash_attn_backward(
            dout, q, k, v, out, lse, *grads, 0.0, scale, causal, *window, softcap, None, False, state
        )
        return (out, lse, *grads), None

    def expected(_: None, *arguments: Tensor) -> tuple:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in arguments]
            result = reference.attention(*leaves, scale, causal, window, softcap)
            found = torch.autograd.grad(result.out, leaves, dout.double())
        return (result.out.detach(), as_flash_attn(result.lse.detach()), *found)

    notes = [f"scale={scale:.3f} causal={causal} window={window} softcap={softcap}"]
    return Call("_flash_attn_forward/backward", first, run, expected, notes, differentiable=False)


def loss(world: World) -> Call:
    rng = world.rng
    rows, classes = rng.choice((1, 5, 9)), rng.choice((2, 11))
    labels = torch.tensor([rng.choice((-100, *range(classes))) for _ in range(rows)])
    smoothing, scale = rng.choice((0.0, 0.0, 0.1)), rng.choice((1.0, 1.0, 0.5))
    z = rng.choice((0.0, 0.0, 0.01))
    logits = world.tensor(rows, classes)
    precomputed = rng.random() < 0.5

    def run(x: Tensor) -> tuple:
        lse = torch.logsumexp(x.detach().float(), -1) if precomputed else None
        return (cross_entropy_loss(x, labels, lse, smoothing, scale, z)[0],), None

    def expected(_: None, x: Tensor) -> tuple:
        return (reference.cross_entropy(x, labels, smoothing, scale, z, -100),)

    notes = [f"smoothing={smoothing} scale={scale} z={z} precomputed={precomputed}"]
    call = Call("cross_entropy_loss", [logits], run, expected, notes, dtype=torch.float32)
    return call


# --------------------------------------------------------------------------------------------- torch's function, pieces


def sdpa(world: World) -> Call:
    rng, n = world.rng, world.sizes
    batch, queries, keys = max(1, n.batch), max(1, n.queries), max(1, n.keys)
    shapes = ((n.heads, queries, n.dim), (n.heads_k, keys, n.dim), (n.heads_k, keys, n.dim_v))
    inputs = [world.tensor(batch, *shape) for shape in shapes]
    scale = rng.choice((None, rng.uniform(0.1, 1.0)))
    kind = rng.choice(("", "causal", "bool", "added"))
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if kind == "causal":
        seen = seen.tril()  # from the top left
    if kind == "bool":
        mask = world.normal(batch, 1, queries, keys, dtype=torch.float32) < 0.7
        mask = world.buffer("sdpa's mask", mask)
        seen = mask.clone()
    if kind == "added":
        inputs.append(world.normal(batch, 1, queries, keys, dtype=world.dtype))

    def run(q: Tensor, k: Tensor, v: Tensor, *added: Tensor) -> tuple:
        given = mask if kind == "bool" else added[0] if added else None
        return (flashwave.sdpa(q, k, v, given, is_causal=kind == "causal", scale=scale, enable_gqa=True),), None

    def expected(_: None, q: Tensor, k: Tensor, v: Tensor, *added: Tensor) -> tuple:
        bias = added[0] if added else torch.zeros((), dtype=q.dtype).masked_fill(~seen, -INF)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return (reference.attention(q, k, v, scale, bias=bias).out.transpose(1, 2),)

    return Call("sdpa", inputs, run, expected, [f"{kind} scale={scale}"], cast=3)


def merged(world: World) -> Call:
    n = world.sizes
    batch, rows = max(1, n.batch), max(1, n.queries)
    exact = torch.float64 if world.dtype == torch.float64 else torch.float32
    first, second = (world.tensor(batch, rows, n.heads, n.dim) for _ in range(2))
    sums = [world.normal(batch, n.heads, rows, dtype=exact) for _ in range(2)]
    unseen = torch.tensor([world.rng.random() < 0.2 for _ in range(rows)])
    sums[1] = sums[1].masked_fill(unseen, -INF)

    def run(o_a: Tensor, o_b: Tensor, lse_a: Tensor, lse_b: Tensor) -> tuple:
        return tuple(flashwave.merge_states(o_a, lse_a, o_b, lse_b)), None

    def expected(_: None, o_a: Tensor, o_b: Tensor, lse_a: Tensor, lse_b: Tensor) -> tuple:
        nothing = lse_b == -INF
        some = lse_b.masked_fill(nothing, 0.0)  # -inf has no second derivative
        both = torch.where(nothing, lse_a, torch.logaddexp(lse_a, some))
        a, b = (lse_a - both).exp(), (some - both).exp().masked_fill(nothing, 0.0)
        a, b = (share.transpose(1, 2)[..., None] for share in (a, b))
        return o_a * a + o_b * b, both

    return Call("merge_states", [first, second, *sums], run, expected, [f"unseen={unseen.tolist()}"])


# -------------------------------------------------------------------------------------------------------- transformers


class _Layer(torch.nn.Module):
    is_causal = True


def transformer(world: World) -> Call:
    """The attention function of transformers, with masks in buffers that are filled anew."""
    rng, n = world.rng, world.sizes
    batch, keys = max(1, n.batch), max(1, n.keys)
    queries = rng.choice((keys, keys, 1))
    # What transformers hands over: (batch, heads, rows, dim).
    shapes = ((n.heads, queries, n.dim), (n.heads_k, keys, n.dim), (n.heads_k, keys, n.dim))
    first = [world.tensor(batch, *shape) for shape in shapes]
    kind = rng.choice(("left", "left", "right", "none", "4-D", "packed", "positions"))
    if kind == "right" and queries != keys:
        kind = "left"
    if kind in ("packed", "positions") and (queries != keys or keys < 2):
        kind = "none"
    tokens = torch.ones(batch, keys, dtype=torch.long)
    numbers = torch.zeros(batch, keys, dtype=torch.long)
    for b in range(batch):
        pad = world.pick.randrange(keys)
        if kind == "left":
            tokens[b, :pad] = 0
        if kind == "right":
            tokens[b, keys - pad :] = 0
        numbers[b, pad:] = 1
    given: dict[str, Any] = {}
    mask = None
    if kind in ("left", "right"):
        mask = world.buffer(f"mask {kind}", tokens, inference=True)
    if kind == "4-D":
        mask = world.buffer(
            "mask 4-D", world.normal(batch, 1, queries, keys, dtype=torch.float32) < 0.7, inference=True
        )
    if kind == "packed":
        mask = world.buffer("numbers", numbers[:, None], inference=True)
    if kind == "positions" and batch == 1:
        row = torch.arange(keys)
        given["position_ids"] = world.buffer(
            "positions", torch.where(numbers == 1, row - numbers.argmax(1), row), inference=True
        )
    layer = _Layer()
    seen = _visible(kind, batch, queries, keys, tokens, numbers, None if mask is None else mask.clone())

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple:
        out, _ = attention_forward(layer, q, k, v, mask, **given)
        return (out * used.to(out.dtype),), None

    used = seen.any(3).transpose(1, 2)[..., None] if kind != "4-D" else torch.ones(1, 1, 1, 1)
    if kind in ("left", "right"):  # what comes out for padding is nobody's concern
        used = used & tokens[:, keys - queries :, None, None].bool()

    def expected(_: None, q: Tensor, k: Tensor, v: Tensor) -> tuple:
        bias = torch.zeros((), dtype=q.dtype).masked_fill(~seen, -INF)
        return (reference.attention(*(x.transpose(1, 2) for x in (q, k, v)), bias=bias).out * used,)

    notes = [kind, f"{tokens.tolist() if mask is not None else given}", "buffer"]
    return Call("transformers", first, run, expected, notes, cast=3)


def _visible(kind: str, b: int, sq: int, sk: int, tokens: Tensor, numbers: Tensor, mask: Tensor | None) -> Tensor:
    """(b, 1, sq, sk): which keys each query sees."""
    if kind == "4-D":
        return mask
    seen = torch.ones(sq, sk).tril(sk - sq).bool()[None, None] & tokens[:, None, None].bool()
    if kind == "packed" or (kind == "positions" and b == 1):
        seen = seen & (numbers[:, None, :, None] == numbers[:, None, None, :])
    return seen.expand(b, 1, sq, sk)


def available() -> dict[str, Any]:
    """Of this module's makers, those whose libraries are installed."""
    makers: dict[str, Any] = {
        f.__name__: f for f in (rotary, module, unpadded, staged, numpy, halves, loss, sdpa, merged)
    }
    if attention_forward is not None:
        makers["transformer"] = transformer
    return makers

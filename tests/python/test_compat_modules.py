"""The small modules of flash_attn that scripts import: each computes what its upstream namesake does, or says in an
ImportError what to use in its place."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flashwave.compat

pytestmark = pytest.mark.usefixtures("tensors_on_the_device")


def module(name: str):
    return importlib.import_module(f"flashwave.compat.flash_attn.{name}")


def close(ours, expected, tolerance=2e-5):
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------------ what is refused

REFUSED = {
    "flash_attn.flash_attn_triton": "flash_attn_func",
    "flash_attn.flash_attn_triton_og": "flash_attn_func",
    "flash_attn.fused_softmax": "torch.softmax",
    "flash_attn.models": "transformers",
    "flash_attn.models.gpt": "transformers",
    "flash_attn.ops.triton.k_activations": "flash_attn.ops.activations",
    "flash_attn.ops.triton.linear": "flash_attn.ops.fused_dense",
    "flash_attn.ops.triton.mlp": "FusedMLP",
    "flash_attn.rotary": "flash_attn.layers.rotary",
    "flash_attn.utils.library": "torch.library",
    "flash_attn.utils.pretrained": "from_pretrained",
    "flash_attn.utils.testing": "tests/test_flash_attn.py",
}
REFUSED_NAMES = {
    "flash_attn.modules.embedding": ("VocabParallelEmbedding", "nn.Embedding"),
    "flash_attn.modules.mlp": ("ParallelMLP", "torch.distributed.tensor.parallel"),
    "flash_attn.ops.triton.rotary": ("rotary_kernel", "apply_rotary"),
    "flash_attn.utils.generation": ("GenerationMixin", "model.generate"),
}


@pytest.fixture
def installed():
    flashwave.compat.install()
    yield
    flashwave.compat.uninstall()


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_is_refused_names_what_to_use(name, installed):
    with pytest.raises(ImportError, match="not provided by flashwave") as refused:
        importlib.import_module(name)
    assert REFUSED[name] in str(refused.value)


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_a_name_that_is_refused_names_what_to_use(name, installed):
    what, replacement = REFUSED_NAMES[name]
    with pytest.raises(ImportError, match=f"{name}.{what} is not provided") as refused:
        exec(f"from {name} import {what}")
    assert replacement in str(refused.value)
    with pytest.raises(AttributeError):
        _ = importlib.import_module(name).nothing_of_the_kind


# ------------------------------------------------------------------------------------------------------- other versions


def test_the_version_that_a_program_was_written_for():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    x = torch.randn(2, 3, 4)
    try:
        for version, values in (("0.2.1", 4), ("2.6.3", 4), ("2.7.4", 5), (None, 5)):
            flashwave.compat.install(version=version)
            flash_attn = importlib.import_module("flash_attn")
            assert flash_attn.__version__ == importlib.metadata.version("flash_attn") == (version or "2.8.3")
            results = importlib.import_module("flash_attn.bert_padding").unpad_input(x, mask)
            assert len(results) == values
            close(results[0], x[mask])
        for wrong in ("3.0.0", "new"):
            with pytest.raises(ValueError, match="version"):
                flashwave.compat.install(version=wrong)
    finally:
        flashwave.compat.uninstall()
    assert importlib.import_module("flashwave.compat.flash_attn").__version__ == "2.8.3"


def test_modules_of_02():
    old = module("flash_attention")
    torch.manual_seed(0)
    mha = old.FlashMHA(32, 4, causal=True, use_rotary_emb="1d", device="cpu", dtype=torch.float32, max_positions=7)
    assert isinstance(mha.inner_attn, old.FlashAttention)
    assert old.FlashAttention(0.5, 0.1, device="cpu", dtype=torch.float16).dropout_p == 0.1
    x = torch.randn(2, 6, 32, device="cpu")
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2], device="cpu")
    out, weights = mha(x, mask)
    assert weights is None and not (out - mha.out_proj.bias)[1, 4:].abs().max() > 1e-6
    rotated = mha.rotary_emb(mha.Wqkv(x[1:, :4]).unflatten(-1, (3, 4, 8)))
    q, k, v = (t.transpose(1, 2) for t in rotated.unbind(2))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    close(out[1:, :4], mha.out_proj(expected))
    with pytest.raises(ValueError, match="use_rotary_emb"):
        old.FlashMHA(32, 4, use_rotary_emb="2d")
    assert module("flash_attn_interface")._get_block_size("cpu", 64, False) > 1 << 20


# ---------------------------------------------------------------------------------------------------- norms with a mask

NORMS = list(itertools.product([False, True], [False, True], [False, True], [0.0, 0.3], [False, True], [False, True]))


@pytest.mark.parametrize("rms, prenorm, residual, dropout, parallel, second", NORMS)
def test_norms_and_their_references(rms, prenorm, residual, dropout, parallel, second):
    """Outputs and gradients, with the masks handed to the reference: fp32 exactly, bf16 as near as plain torch."""
    norms = module("ops.triton.layer_norm")
    reference = norms.rms_norm_ref if rms else norms.layer_norm_ref
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        x, *others = (torch.randn(4, 6, 24).to(dtype).requires_grad_() for _ in range(3))
        weights = [torch.randn(24, requires_grad=True) for _ in range(4)]
        given = {
            "x": x,
            "weight": weights[0],
            "bias": None if rms else weights[1],
            "residual": others[0] if residual else None,
            "x1": others[1] if parallel else None,
            "weight1": weights[2] if second else None,
            "bias1": weights[3] if second and not rms else None,
            "dropout_p": dropout,
            "prenorm": prenorm,
            "zero_centered_weight": second,
        }
        ours = norms.layer_norm_fn(**given, is_rms_norm=rms, return_dropout_mask=True)
        *ours, mask, mask1 = ours
        assert (mask is None) == (dropout == 0.0) and (mask1 is None) == (dropout == 0.0 or not parallel)
        assert mask is None or mask.dtype == torch.bool
        masks = {"dropout_mask": mask, "dropout_mask1": mask1}
        exact, plain = (reference(**given, **masks, upcast=upcast) for upcast in (True, False))
        exact, plain = (r if isinstance(r, tuple) else (r,) for r in (exact, plain))
        assert len(ours) == len(exact) == 1 + second + prenorm
        leaves = [t for t in given.values() if isinstance(t, torch.Tensor)]
        gradients = [_gradients(results, leaves) for results in (ours, exact, plain)]
        for a, b, c in zip((*ours, *gradients[0]), (*exact, *gradients[1]), (*plain, *gradients[2])):
            allowed = 2e-5 * (1 + b.abs().max()) if dtype == torch.float32 else 5e-2 * (1 + b.abs().max())
            assert (a - b).abs().max() <= 2 * (c - b).abs().max() + allowed


def _gradients(results, leaves):
    total = sum((r.float() * torch.linspace(-1, 1, r.numel()).view_as(r)).sum() for r in results)
    return torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("rms", [False, True])
def test_norms_of_a_subset(rms):
    norms = module("ops.rms_norm" if rms else "ops.layer_norm")
    function = norms.dropout_add_rms_norm_subset if rms else norms.dropout_add_layer_norm_subset
    residual, weight, scale = torch.randn(6, 16), torch.rand(16), torch.rand(16)
    bias = None if rms else torch.rand(16)
    x0 = torch.randn(3, 16, requires_grad=True)
    rows_in = torch.tensor([1, 0, 2, 0, 0, 3], dtype=torch.int32)
    rows_out = torch.tensor([0, 1, 2, 0, 3, 4], dtype=torch.int32)
    y, h, mask = function(
        x0, residual, weight, bias, 0.0, 1e-5, scale, rows_in, rows_out, 1.25, 4, prenorm=True, return_dropout_mask=True
    )
    expected = residual.clone()
    expected[[0, 2, 5]] += x0 * scale * 1.25
    close(h, expected)
    one = F.rms_norm(expected, (16,), weight, 1e-5) if rms else F.layer_norm(expected, (16,), weight, bias, 1e-5)
    close(y, one[[1, 2, 4, 5]])
    assert mask.dtype == torch.uint8 and mask.all()
    ours, theirs = torch.autograd.grad(y.square().sum(), x0), torch.autograd.grad(one[[1, 2, 4, 5]].square().sum(), x0)
    close(ours, theirs, 1e-4)
    whole = function(x0, None, weight, bias, 0.0, 1e-5)
    close(whole, F.rms_norm(x0, (16,), weight, 1e-5) if rms else F.layer_norm(x0, (16,), weight, bias, 1e-5))
    big = torch.ones(200, 64)
    y, h, mask = function(
        big, None, torch.ones(64), None, 0.25, 1e-5, prenorm=True, residual_in_fp32=True, return_dropout_mask=True
    )
    close(h, mask.float() / 0.75)
    assert abs(mask.float().mean() - 0.75) < 0.02


def test_masks_of_the_former_extension():
    norms = module("ops.layer_norm")
    x, weight = torch.randn(50, 64), torch.ones(64)
    _, h, mask = norms.dropout_add_layer_norm(
        x, None, weight, weight, 0.25, 1e-5, prenorm=True, return_dropout_mask=True
    )
    close(h, x * mask / 0.75)
    assert mask.dtype == torch.uint8
    results = norms.dropout_add_layer_norm_parallel_residual(
        x, None, None, weight, weight, None, None, 0.0, 1e-5, return_dropout_mask=True
    )
    assert len(results) == 4 and results[1] is None and results[2].all() and results[3].all()


# ------------------------------------------------------------------------------------------------------- cross entropy

PARALLEL = """
import sys, torch, torch.distributed as dist
from flashwave.compat.flash_attn.losses.cross_entropy import CrossEntropyLoss

rank, ranks = int(sys.argv[1]), 2
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=ranks)
torch.manual_seed(0)
whole, labels, weights = torch.randn(9, 20), torch.randint(0, 20, (9,)), torch.rand(9)
labels[3] = -100
parts = [part.clone().requires_grad_() for part in whole.chunk(ranks, dim=-1)]
for smoothing in (0.0, 0.2):
    options = {"label_smoothing": smoothing, "logit_scale": 0.7, "lse_square_scale": 0.01, "reduction": "none"}
    loss = CrossEntropyLoss(**options, process_group=dist.group.WORLD)(parts[rank], labels)
    expected = CrossEntropyLoss(**options)(torch.cat(parts, dim=-1), labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*[torch.autograd.grad(one, parts[rank], weights)[0] for one in (loss, expected)])
dist.barrier()
dist.destroy_process_group()  # else a thread of gloo's may outlive main
"""


def test_cross_entropy_of_classes_on_two_ranks(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", PARALLEL, str(rank), str(tmp_path / "meeting")]) for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]


CROSS = list(itertools.product([torch.float32, torch.float16, torch.bfloat16], [0.0, 0.9], [1.0, 0.7], [0.0, 1e-2]))


@pytest.mark.parametrize("dtype, smoothing, scale, square", CROSS)
@pytest.mark.parametrize("precomputed", [False, True])
def test_cross_entropy_against_torch(dtype, smoothing, scale, square, precomputed):
    torch.manual_seed(0)
    rows, classes = 24, 5003
    x = torch.randn(rows, classes).to(dtype).requires_grad_()
    labels = torch.randint(0, classes, (rows,))
    labels[torch.randperm(rows)[:5]] = -100
    loss = module("losses.cross_entropy").CrossEntropyLoss(
        label_smoothing=smoothing, logit_scale=scale, lse_square_scale=square, inplace_backward=True, return_z_loss=True
    )
    ours, z_loss = loss(x, labels, precomputed_lse=x.detach().float().logsumexp(-1) if precomputed else None)
    expected = F.cross_entropy(x.float() * scale, labels, label_smoothing=smoothing)
    z = square * (x.float() * scale).logsumexp(-1)[labels != -100].square().mean()
    torch.testing.assert_close(ours, expected + z, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(z_loss, z.detach(), rtol=1e-5, atol=1e-6)
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-3, 1e-4)
    gradients = [torch.autograd.grad(result, x)[0] for result in (ours, expected + z)]
    torch.testing.assert_close(*gradients, rtol=rtol, atol=atol)


# ---------------------------------------------------------------------------------------------------- modules and utils


def test_mlps():
    mlp = module("modules.mlp")
    x = torch.randn(3, 16)
    plain = mlp.Mlp(16, return_residual=True).to(x.device)
    assert plain.fc1.out_features == 64
    out, same = plain(x)
    close(out, plain.fc2(F.gelu(plain.fc1(x))))
    assert same is x
    for activation, expected in (
        (F.sigmoid, lambda y, g: y * g.sigmoid()),
        (F.silu, lambda y, g: y * F.silu(g)),
        (F.relu, lambda y, g: y * g.relu()),
    ):
        gated = mlp.GatedMlp(16, activation=activation, multiple_of=8).to(x.device)
        assert gated.fc2.in_features == 48  # 8/3 of 16, in whole eights
        close(gated(x), gated.fc2(expected(*gated.fc1(x).chunk(2, dim=-1))))


def test_embeddings():
    embedding = module("modules.embedding")
    words = torch.randint(0, 11, (2, 5))
    gpt = embedding.GPT2Embeddings(8, 11, 6, word_embed_proj_dim=4).to(words.device)
    close(gpt(words), gpt.project_in(gpt.word_embeddings(words)) + gpt.position_embeddings.weight[:5])
    bert = embedding.BertEmbeddings(8, 11, 6, 2).to(words.device)
    types = torch.randint(0, 2, (2, 5))
    expected = bert.word_embeddings(words) + bert.position_embeddings.weight[:5]
    close(bert(words), expected + bert.token_type_embeddings.weight[0])
    close(bert(words, token_type_ids=types), expected + bert.token_type_embeddings(types))
    plain = embedding.GPT2Embeddings(8, 11, 0).to(words.device)
    close(plain(words), plain.word_embeddings(words))


@pytest.mark.parametrize("fused", [False, True])
def test_blocks(fused):
    block = module("modules.block")
    rms = module("ops.rms_norm").RMSNorm
    torch.manual_seed(0)
    x, before = torch.randn(2, 5, 64), torch.randn(2, 5, 64)

    def made(cls, **options):
        return cls(64, fused_dropout_add_ln=fused, **options).to(x.device).eval()

    one = made(block.Block, residual_in_fp32=True, resid_dropout1=0.5, drop_path1=0.5)
    out, total = one(x, before)
    attended = one.mixer(one.norm1(x + before))
    close(total, x + before + attended)
    close(out, one.mlp(one.norm2(total)))
    after = made(block.Block, prenorm=False, norm_cls=rms)
    middle = after.norm1(after.mixer(x) + x)
    close(after(x), after.norm2(after.mlp(middle) + middle))
    side = made(block.ParallelBlock)
    first, second, total = side(x, before, x)
    close(total, x + before + x)
    close((first, second), (side.mixer(side.norm1(total)), side.mlp(side.norm2(total))))
    with pytest.raises(ValueError, match="norm_cls"):
        block.Block(64, norm_cls=nn.BatchNorm1d, fused_dropout_add_ln=True)


def test_stochastic_depth_keeps_the_mean():
    drop = module("modules.block").StochasticDepth(0.25)
    x = torch.ones(4000, 3)
    out = drop(x)
    rows = out.mean(-1)
    assert sorted(round(float(row), 3) for row in rows.unique()) == [0.0, 1.333]
    assert abs(out.mean() - 1.0) < 0.05
    assert drop.eval()(x) is x


def test_patches_of_an_image():
    embed = module("layers.patch_embed").PatchEmbed(12, 4, 3, 10)
    image = torch.randn(2, 3, 12, 12)
    embed = embed.to(image.device)
    out = embed(image)
    assert out.shape == (2, 9, 10) and embed.num_patches == 9
    close(out[1, 5], embed.proj(image[1, :, 4:8, 8:12].flatten()))
    with pytest.raises(ValueError, match="img_size"):
        embed(image[..., :8])


def test_a_cache_of_inference_params():
    generation = module("utils.generation")
    mha = module("modules.mha").MHA(32, 2, causal=True, layer_idx=0, rotary_emb_dim=16)
    x = torch.randn(2, 6, 32)
    mha = mha.to(x.device).eval()
    params = generation.InferenceParams(max_seqlen=8, max_batch_size=2)
    with torch.no_grad():
        parts = []
        for start, stop in ((0, 4), (4, 5), (5, 6)):
            params.seqlen_offset = start
            parts.append(mha(x[:, start:stop], inference_params=params))
        close(torch.cat(parts, dim=1), mha(x))
    params.reset(4, 1)
    assert (params.max_seqlen, params.max_batch_size, params.seqlen_offset) == (4, 1, 0)


def test_sampling():
    generation = module("utils.generation")
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]] * 500)
    assert generation.sample(logits).tolist() == [1] * 500
    assert set(generation.sample(logits, top_k=2).tolist()) == {1, 2}
    assert set(generation.sample(logits, top_k=0, top_p=0.7).tolist()) == {1, 2}
    assert set(generation.sample(logits, top_k=0, min_p=0.5).tolist()) == {1}
    assert set(generation.sample(logits, top_k=0).tolist()) == {0, 1, 2, 3}
    assert torch.isfinite(logits).all()  # not changed


def test_parts_of_ranks():
    part = module("utils.distributed").get_dim_for_local_rank
    assert [part(20, 3, rank, 2) for rank in range(3)] == [8, 6, 6]


def test_benchmarks_of_any_function(capsys, tmp_path):
    benchmark = module("utils.benchmark")
    x = torch.randn(8, 8, requires_grad=True)
    calls = SimpleNamespace(count=0)

    def function(a, scale=1.0):
        calls.count += 1
        return (a.square() * scale, None)

    results = benchmark.benchmark_all(function, x, repeats=3, desc="squares", scale=2.0)
    printed = capsys.readouterr().out
    for what in ("Forward", "Backward", "Forward + Backward"):
        assert f"squares - {what} pass" in printed
    assert len(results) == 3 and all(m.mean > 0.0 for _, m in results)
    close(x.grad.abs().gt(0).float().mean(), torch.tensor(1.0))
    assert benchmark.benchmark_forward(function, x, verbose=False)[1].number_per_run == 10
    with pytest.raises(RuntimeError, match="grad"):
        benchmark.benchmark_backward(function, x, grad=torch.ones(3))
    before = calls.count
    trace = tmp_path / "trace.json"
    benchmark.pytorch_profiler(function, x, trace_filename=trace, backward=True, verbose=False)
    assert calls.count > before and trace.stat().st_size > 0
    big = torch.randn(1 << 20, device="cpu")
    assert 4 / 1000 < benchmark.benchmark_memory(lambda a: a + 1, big, verbose=False) < 5 / 1000


def test_decorators_of_autograd_functions():
    decorators = module("utils.torch")

    class Double(torch.autograd.Function):
        @staticmethod
        @decorators.custom_fwd
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @decorators.custom_bwd
        def backward(ctx, gradient):
            return 2 * gradient

    x = torch.ones(3, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3

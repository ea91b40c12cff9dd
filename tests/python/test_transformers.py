"""Small models of Hugging Face transformers, with flashwave as their attention, against transformers' own "eager".

The rule is docs/numerics.md's: at most 2 (gradients: 3) times the error that eager makes in the same dtype, the truth
being eager in float64 on the same weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="4.53")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import flashwave.compat  # noqa: E402
import flashwave.integrations.transformers as integration  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "attention_dropout": 0.0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _config(name):
    if name == "llama":
        return transformers.LlamaConfig(**GROUPED)
    if name == "mistral":
        return transformers.MistralConfig(**GROUPED, sliding_window=5)
    if name == "gemma2":  # a sliding window in every other layer
        return transformers.Gemma2Config(
            **GROUPED, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
        )
    if name == "gpt_oss":
        return transformers.GptOssConfig(
            **GROUPED, sliding_window=5, num_local_experts=2, num_experts_per_tok=2, rope_scaling=None
        )
    if name == "bert":
        return transformers.BertConfig(**SIZES, **NO_DROPOUT)
    if name == "bart":
        return transformers.BartConfig(
            vocab_size=64,
            d_model=64,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
            dropout=0.0,
        )
    if name == "t5":
        return transformers.T5Config(
            vocab_size=64, d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0
        )
    raise KeyError(name)


AUTO = {
    "bert": transformers.AutoModelForMaskedLM,
    "bart": transformers.AutoModelForSeq2SeqLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
}


def _model(name, implementation, dtype, device=DEVICE):
    torch.manual_seed(0)
    options = {"attn_implementation": implementation}
    if name == "gpt_oss" and int(transformers.__version__.split(".")[0]) >= 5:
        options["experts_implementation"] = "eager"  # the default has no float64
    model = AUTO.get(name, transformers.AutoModelForCausalLM).from_config(_config(name), **options)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Larger than transformers' initial weights, so that the attention is far from uniform.
            values = torch.randn(parameter.shape) * (0.15 if parameter.dim() > 1 else 0.1)
            if name == "t5" and key.endswith(".q.weight"):
                values /= 4  # it does not scale scores: 1/sqrt(dim) is part of its initial weights
            is_scale = "norm" in key.lower() and key.endswith("weight")
            parameter.copy_(values.to(torch.bfloat16) + (1.0 if is_scale else 0.0))
    assert model.config._attn_implementation == implementation
    return model.to(device, dtype).eval()


@pytest.fixture(params=["flashwave", "flash_attention_2"])
def implementation(request):
    if request.param == "flashwave":
        integration.register()
        yield request.param
    else:
        flashwave.compat.install()
        yield request.param
        flashwave.compat.uninstall()


def _needs(name, implementation):
    if name == "bert" and not hasattr(transformers.BertModel, "_supports_attention_backend"):
        pytest.skip("this transformers' BERT knows eager and sdpa only")
    if name == "bert" and not transformers.BertModel._supports_attention_backend:
        pytest.skip("this transformers' BERT knows eager and sdpa only")
    if name == "gpt_oss" and implementation == "flash_attention_2":
        pytest.skip("transformers refuses FlashAttention-2 for models with attention sinks")


BATCH, LENGTH = 3, 12


def _inputs(padding):
    torch.manual_seed(1)
    ids = torch.randint(2, 64, (BATCH, LENGTH))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    for row, pads in enumerate((0, 3, 5)):
        if padding == "right" and pads:
            mask[row, -pads:] = 0
        if padding == "left" and pads:
            mask[row, :pads] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _there(inputs):
    return {key: value.to(DEVICE) for key, value in inputs.items()}


def _backward(model, logits):
    torch.manual_seed(2)
    (logits * torch.randn(logits.shape, dtype=torch.float64).to(logits)).sum().backward()
    return {key: value.grad.cpu() for key, value in model.named_parameters() if value.grad is not None}


def _run(name, implementation, dtype, inputs):
    """Logits of the tokens, and the gradient of every parameter."""
    model = _model(name, implementation, dtype)
    inputs = _there(inputs)
    logits = model(**inputs).logits
    tokens = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    logits = logits.flatten(0, 1) if tokens is None else logits[tokens.bool()]
    return logits.detach().cpu(), _backward(model, logits)


def _truth(name, inputs):
    """`_run` of each sequence alone, without its padding, at the positions it has in the batch."""
    model = _model(name, "eager", torch.float64, "cpu")
    rows = []
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        arguments = {"input_ids": inputs["input_ids"][row, mask][None]}
        if "decoder_input_ids" in inputs:
            arguments["decoder_input_ids"] = inputs["decoder_input_ids"][row][None]
        else:
            arguments["position_ids"] = mask.nonzero().T
        rows.append(model(**arguments).logits[0])
    logits = torch.cat(rows)
    return logits.detach(), _backward(model, logits)


class _Operators(TorchDispatchMode):
    """Which operators of flashwave are called."""

    def __init__(self):
        super().__init__()
        self.of_flashwave = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "flashwave":
            self.of_flashwave.add(str(function))
        return function(*args, **(kwargs or {}))


def _check(name, implementation, dtype, inputs):
    truth, true_gradients = _truth(name, inputs)
    plain, plain_gradients = _run(name, "eager", dtype, inputs)
    with _Operators() as operators:
        ours, our_gradients = _run(name, implementation, dtype, inputs)
    assert operators.of_flashwave  # not another attention that transformers chose
    _within(2, ours, plain, truth, truth.abs().max(), "logits")
    assert our_gradients.keys() == plain_gradients.keys() == true_gradients.keys()
    scale = max(gradient.abs().max() for gradient in true_gradients.values())
    for key, gradient in our_gradients.items():
        if key.endswith("router.bias"):
            continue  # two elements that add up to 0: eager's error is one number, and by chance can be small
        _within(3, gradient, plain_gradients[key], true_gradients[key], scale, key)


def _within(factor, ours, plain, truth, scale, what):
    """At most `factor` times eager's error, and a few roundings of the largest number of its kind."""
    error = (ours.double() - truth).abs().max()
    rounding = 4 * torch.finfo(torch.float32).eps
    if truth.abs().max() < 1e-9 * scale:
        # 0 in truth, as the gradient of a bias of the keys: a softmax does not mind a shift. Eager's error then is as
        # random as ours; both are sums of numbers that were rounded to the model's type and should cancel.
        rounding = max(rounding, torch.finfo(ours.dtype).eps)
    allowed = factor * (plain.double() - truth).abs().max() + rounding * scale
    assert error <= allowed, f"{what}: {error:.2e} > {allowed:.2e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", ["llama", "bert", "mistral", "gemma2", "gpt_oss"])
def test_outputs_and_gradients(name, padding, dtype, implementation):
    _needs(name, implementation)
    if dtype == torch.bfloat16 and padding == "left":
        pytest.skip("covered by fp32")
    _check(name, implementation, dtype, _inputs(padding))


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_cross_attention(name):
    """An encoder's padding in the decoder's cross-attention; lengths differ and are equal. T5 adds a learned bias."""
    if name == "t5" and int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("this transformers' T5 knows eager only")
    integration.register()
    for length in (5, LENGTH):
        inputs = _inputs("right")  # its positions are absolute: only so is a sequence alone the same
        inputs["decoder_input_ids"] = torch.randint(2, 64, (BATCH, length))
        inputs["decoder_attention_mask"] = torch.ones(BATCH, length, dtype=torch.long)
        _check(name, "flashwave", torch.float32, inputs)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_sequences(name, implementation):
    """Sequences one after the other in one row, told apart by their positions alone."""
    torch.manual_seed(3)
    lengths = (5, 1, 9)
    ids = torch.randint(2, 64, (1, sum(lengths)))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    packed, gradients = _run(name, implementation, torch.float32, {"input_ids": ids, "position_ids": positions})
    model = _model(name, "eager", torch.float32, "cpu")
    rows = [model(input_ids=part).logits[0] for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(rows), rtol=1e-4, atol=1e-4)
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


def test_mask_that_is_no_known_kind():
    """A 4-D mask of the caller's is followed, whatever it is."""
    integration.register()
    torch.manual_seed(4)
    ids = torch.randint(2, 64, (2, 10)).to(DEVICE)
    visible = ((torch.rand(2, 1, 10, 10) < 0.5) | torch.eye(10, dtype=torch.bool)).to(DEVICE)
    mask = torch.zeros(2, 1, 10, 10, device=DEVICE).masked_fill(~visible, torch.finfo(torch.float32).min)
    for given in (mask, visible):
        ours = _model("llama", "flashwave", torch.float32)(input_ids=ids, attention_mask=given).logits
        eager = _model("llama", "eager", torch.float32)(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_mask_functions():
    """Which masks are stored: those of unknown functions, and none that the attention is told of otherwise."""
    masking = pytest.importorskip("transformers.masking_utils")
    if torch.__version__ < "2.6":
        pytest.skip("transformers composes masks with torch 2.6 and later only")
    ask = integration.masks.attention_mask
    arguments = {"batch_size": 2, "kv_length": 6, "attention_mask": None, "dtype": torch.float32}
    arguments.update(q_length=6, q_offset=0, device="cpu")
    causal, window = masking.causal_mask_function, masking.sliding_window_causal_mask_function(3)
    assert ask(**arguments, mask_function=causal) is None
    assert ask(**arguments, mask_function=window) is None
    # Keys that are not filled yet.
    later = ask(**{**arguments, "q_length": 2, "q_offset": 1}, mask_function=causal)
    assert torch.equal(later[0, 0], torch.ones(2, 6).tril(1).bool())
    # Bidirectional within a block of tokens, as images are.
    block = torch.tensor([0, 0, 1, 1, 0, 0])

    def same_block(batch, head, q, k):
        return (block[q] == 1) & (block[k] == 1)

    mask = ask(**arguments, mask_function=masking.or_masks(causal, same_block), use_vmap=True)
    expected = torch.ones(6, 6).tril().bool()
    expected[2, 3] = True
    assert mask.dim() == 4 and torch.equal(mask[0, 0], expected)
    numbers = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
    packed = masking.and_masks(window, masking.packed_sequence_mask_function(numbers))
    offsets, longest = integration.masks.packed_offsets(ask(**arguments, mask_function=packed))
    assert offsets.tolist() == [0, 2, 5, 6, 12] and longest == 6


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "bart"])
def test_generate(name, padding, implementation):
    """Greedy decoding with a cache gives eager's tokens."""
    _needs(name, implementation)
    if name == "bart" and implementation == "flash_attention_2":
        pytest.skip("transformers' own padding code takes the queries of cross-attention for the encoder's tokens")
    inputs = _there(_inputs(padding))
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = _model(name, "eager", torch.float32).generate(**inputs, **options)
    got = _model(name, implementation, torch.float32).generate(**inputs, **options)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_generate_with_static_cache(name):
    integration.register()
    inputs = _there(_inputs("left"))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = _model(name, "eager", torch.float32).generate(**inputs, **options)
    options.update(cache_implementation="static", disable_compile=True)
    assert torch.equal(_model(name, "flashwave", torch.float32).generate(**inputs, **options), expected)


def test_continued_from_a_cache():
    """Several new tokens behind a cache, in one call."""
    integration.register()
    ids = _inputs(None)["input_ids"].to(DEVICE)
    results = []
    for implementation in ("eager", "flashwave"):
        model = _model("llama", implementation, torch.float32)
        cache = model(input_ids=ids[:, :7], use_cache=True).past_key_values
        results.append(model(input_ids=ids[:, 7:], past_key_values=cache).logits)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def _continuous(name, implementation, prompts, blocks):
    """The new tokens of each prompt, by continuous batching; blocks: as many of a request may be named by a table."""
    model = _model(name, implementation, torch.float32)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": 63}
    sizes = {"num_blocks": 64, "max_batch_tokens": 64, "max_blocks_per_request": blocks, "use_async_batching": False}
    if name == "gpt_oss":
        sizes["use_cuda_graph"] = False  # its experts ask the GPU which of them are wanted, which no graph can hold
    results = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(**options),
        continuous_batching_config=transformers.ContinuousBatchingConfig(**sizes),
    )
    return [results[key].generated_tokens for key in sorted(results, key=lambda key: int(key.split("_")[-1]))]


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("blocks", [0, 8])
@pytest.mark.skipif(not hasattr(transformers, "ContinuousBatchingConfig"), reason="another continuous batching")
def test_continuous_batching(name, blocks):
    """Many requests of different lengths in one row, keys in blocks: the tokens of eager, one request at a time."""
    integration.register()
    torch.manual_seed(1)
    prompts = [torch.randint(1, 60, (length,)).tolist() for length in (3, 9, 14)]
    model = _model(name, "eager", torch.float32)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": 63}
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=DEVICE)
        row = model.generate(ids, **options)[0, len(prompt) :].tolist()
        expected.append(row)
    with mock.patch.object(integration.paged, "attend", wraps=integration.paged.attend) as attend:
        got = _continuous(name, "flashwave", prompts, blocks)
    assert attend.called, "another attention was used"
    assert got == expected


def test_paged_with_a_block_table():
    """Decoding from blocks: the cache only says where they are, and the new key of each request is appended."""
    heads, dim, page = 2, 16, 4
    k_cache, v_cache = torch.randn(6, page, heads, dim), torch.randn(6, page, heads, dim)
    table = torch.tensor([[0, 2], [5, 1]], dtype=torch.int32)
    stored = [3, 6]
    q, k, v = (torch.randn(1, heads, 2, dim) for _ in range(3))
    dense = []
    for b in range(2):
        keys, values = (torch.cat([x[p] for p in table[b].tolist()])[: stored[b]] for x in (k_cache, v_cache))
        keys, values = torch.cat((keys, k[0, :, b][None])), torch.cat((values, v[0, :, b][None]))
        dense.append(flashwave.flash_attn_func(q[:, :, b][:, None], keys[None], values[None], causal=True))

    class Cache:
        def update(self, key_states, value_states, layer_idx, kwargs):
            kwargs.update(k_cache=k_cache, v_cache=v_cache, block_table=table)
            return key_states, value_states

    module = torch.nn.Module()
    module.layer_idx, module.is_causal = 0, True
    out, _ = integration.attention_forward(
        module, q, k, v, None, cache=Cache(), cu_seq_lens_q=torch.tensor([0, 1, 2]), max_length_q=1,
        cu_seq_lens_k=torch.tensor([0, 4, 11]), max_length_k=7,
    )  # fmt: skip
    torch.testing.assert_close(out, torch.cat(dense, 1))
    assert torch.equal(k_cache[0, 3], k[0, :, 0]) and torch.equal(v_cache[1, 2], v[0, :, 1])


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("refill", ["copy_", "data", "numpy"])
def test_a_mask_that_is_refilled(inference, refill):
    """A server's buffer: whatever wrote to it, the next call sees the next request."""
    if refill == "numpy" and DEVICE != "cpu":
        pytest.skip("NumPy's arrays are on the CPU")
    module = torch.nn.Module()
    module.is_causal = True
    first, second = [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], [[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]
    with torch.inference_mode(inference):
        q, k, v = (torch.randn(2, 2, 6, 16, device=DEVICE) for _ in range(3))
        mask = torch.tensor(first, device=DEVICE)
        integration.attention_forward(module, q, k, v, mask)
        if refill == "copy_":
            mask.copy_(torch.tensor(second))
        elif refill == "data":
            mask.data[:] = torch.tensor(second, device=DEVICE)
        else:
            mask.numpy()[:] = second
        got = integration.attention_forward(module, q, k, v, mask)[0]
        assert torch.equal(got, integration.attention_forward(module, q, k, v, mask.clone())[0])


def test_dropout_is_used_in_training():
    integration.register()
    inputs = _there(_inputs("right"))
    model = _model("llama", "flashwave", torch.float32)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    quiet = model(**inputs).logits
    assert torch.equal(quiet, model(**inputs).logits)
    model.train()
    torch.manual_seed(5)
    noisy = model(**inputs).logits
    assert not torch.allclose(noisy, quiet)
    torch.manual_seed(5)
    assert torch.equal(noisy, model(**inputs).logits)


def test_what_is_refused():
    integration.register()
    model = _model("llama", "flashwave", torch.float32)
    attend = integration.attention_forward
    q = torch.randn(1, 4, 3, 16, device=DEVICE)
    with pytest.raises(ValueError, match="head_mask"):
        attend(model, q, q, q, None, head_mask=torch.ones(4))
    with pytest.raises(ValueError, match="output_attentions"):
        attend(model, q, q, q, None, output_attentions=True)
    with pytest.raises(ValueError, match="attention_mask"):
        attend(model, q, q, q, torch.ones(3, device=DEVICE))


def test_transformers_refuses_cpus_without_install():
    """What install is for: without it transformers says no before any attention is asked."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert not flashwave.compat.installed()
    with pytest.raises((ImportError, ValueError)):
        _model("llama", "flash_attention_2", torch.float32)
    flashwave.compat.install()
    try:
        _model("llama", "flash_attention_2", torch.float32)
    finally:
        flashwave.compat.uninstall()
    with pytest.raises((ImportError, ValueError)):
        _model("llama", "flash_attention_2", torch.float32)


INSTALLED_FIRST = """
import flashwave.compat  # noqa: E402
flashwave.compat.install()
import torch, transformers
sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
ids = torch.arange(8)[None]
results = []
for implementation in ("eager", "flash_attention_2"):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    results.append(model(ids).logits)
torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
import flash_attn, transformers.modeling_flash_attention_utils as utils
assert utils._flash_varlen_fn is flash_attn.flash_attn_varlen_func
"""


def test_install_before_transformers():
    paths = [str(Path(flashwave.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", INSTALLED_FIRST], env=environment, check=True)

"""flashwave's Triton kernels, compiled for AMD GPUs and run on every emulated one: the numeric rule, and no report."""

import attention  # first: it says where flashwave and the oracle of its tests are
import pytest
import torch

import cases
import gradients
from cases import Features
from flashwave.backends.triton import launch as triton_launch
from numeric import assert_within_rule

# Each feature in one of them; two blocks of queries and of keys at least, the last ones not full.
CASES = {
    "causal window grouped padded": (torch.bfloat16, Features(
        heads=(2, 1), dims=(40, 64), batch=1, longest_q=150, longest_k=163, causal=True, window=(70, -1))),
    "packed dropout terms": (torch.float16, Features(
        heads=(2, 2), dims=(32, 32), packed_q=True, keys="packed", longest_q=150, longest_k=140, dropout=0.3,
        softcap=1.5, bias="bhqk", slopes="bh", sinks=True)),
    "window on both sides": (torch.bfloat16, Features(
        heads=(1, 1), dims=(64, 64), batch=1, longest_q=140, longest_k=150, window=(30, 20))),
    "dropout window head dim above 128": (torch.bfloat16, Features(
        heads=(1, 1), dims=(160, 160), batch=1, longest_q=40, longest_k=70, window=(-1, 9), dropout=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(arch, name):
    dtype, features = CASES[name]
    problem = cases.make(features, dtype)
    with attention.on_emulator(arch) as launches:
        out, lse = triton_launch.forward(problem, None, True)
        dout, dlse = gradients.incoming(problem, out, lse)
        results = triton_launch.backward(problem, dout, dlse, out, lse, gradients.all_needed(problem))
    assert launches == ["attention_forward", "row_terms", "attention_backward_queries", "attention_backward_keys"]
    exact, wanted = gradients.of_oracle(cases.to(problem, dtype=torch.float64), dout, dlse, torch.float64)
    naive, rough = gradients.of_oracle(problem, dout, dlse, dtype)
    assert_within_rule(out, exact.out, naive.out, 2, "out")
    assert_within_rule(lse, exact.lse, naive.lse, 2, "lse")
    gradients.assert_within_rule(problem, results, wanted, rough)

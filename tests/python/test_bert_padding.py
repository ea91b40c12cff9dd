"""flashwave.padding, which is flash_attn.bert_padding."""

from __future__ import annotations

import pytest
import torch

from flashwave.padding import (
    index_first_axis,
    index_first_axis_residual,
    index_put_first_axis,
    pad_input,
    unpad_input,
    unpad_input_for_concatenated_sequences,
)

MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32])
def test_unpad_and_pad(shape, dtype, device):
    mask = MASK.to(device, dtype)
    x = torch.randn(4, 5, *shape, device=device)
    rows, indices, cu_seqlens, longest, used = unpad_input(x, mask)
    assert torch.equal(rows, x[mask.bool()])
    assert cu_seqlens.tolist() == [0, 3, 6, 6, 11] and cu_seqlens.dtype == torch.int32
    assert longest == 5 and isinstance(longest, int)
    assert used.tolist() == [3, 3, 0, 5]
    padded = pad_input(rows, indices, 4, 5)
    assert torch.equal(padded[mask.bool()], rows) and not padded[~mask.bool()].any()


def test_unused_elements_are_kept_but_not_counted(device):
    x = torch.randn(2, 4, 3, device=device)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]], device=device)
    unused = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 1]], device=device)
    rows, _, cu_seqlens, longest, used = unpad_input(x, mask, unused)
    assert torch.equal(rows, x[(mask + unused).bool()])
    assert (cu_seqlens.tolist(), longest, used.tolist()) == ([0, 3, 7], 4, [2, 1])


def test_several_sequences_in_a_row(device):
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]], device=device)
    x = torch.randn(3, 6, 2, device=device)
    rows, indices, cu_seqlens, longest = unpad_input_for_concatenated_sequences(x, lengths)
    assert torch.equal(rows, torch.cat([x[0, :5], x[1, :5], x[2]]))
    assert (cu_seqlens.tolist(), longest) == ([0, 2, 5, 8, 10, 16], 6)
    assert torch.equal(pad_input(rows, indices, 3, 6)[0, :5], x[0, :5])


def test_nothing_but_padding(device):
    rows, indices, cu_seqlens, longest, _ = unpad_input(
        torch.randn(2, 3, 4, device=device), torch.zeros(2, 3, dtype=torch.bool, device=device)
    )
    assert rows.shape == (0, 4) and longest == 0 and cu_seqlens.tolist() == [0, 0, 0]
    assert not pad_input(rows, indices, 2, 3).any()


def test_gradients():
    indices = torch.tensor([4, 0, 2])
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: index_first_axis(t, indices), x)
    assert torch.autograd.gradcheck(lambda t: index_put_first_axis(t, indices, 6), values)
    assert torch.autograd.gradcheck(lambda t: index_first_axis_residual(t, indices), x)
    assert torch.equal(index_first_axis_residual(x, indices)[1], x)

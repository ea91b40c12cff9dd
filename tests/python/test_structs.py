"""Layouts of tensors that the library does not take as they are."""

from __future__ import annotations

import pytest
import torch

import flashwave


@pytest.mark.parametrize("layout", ["gaps", "repeated"])
def test_slopes_of_any_layout_have_their_gradient(layout, device):
    """The library writes their gradient with their strides."""
    q, k, v = (torch.randn(3, 6, 2, 8, device=device) for _ in range(3))
    if layout == "gaps":
        slopes = torch.rand(3, 64, device=device)[:, 7:9]
    else:
        slopes = torch.rand(2, device=device).expand(3, 2)
    gradients = []
    for leaf in (slopes, slopes.contiguous()):
        leaf = leaf.detach().requires_grad_()
        flashwave.attention(q, k, v, alibi_slopes=leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
    assert (gradients[0] != 0).all()

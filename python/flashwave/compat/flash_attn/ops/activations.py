"""Activations of flash_attn.ops.activations. gelu is the tanh approximation, as upstream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _in_fp32(function, *inputs: Tensor) -> Tensor:
    return function(*(x.float() for x in inputs)).to(inputs[0].dtype)


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    return _in_fp32(lambda a, b: F.gelu(a + b, approximate="tanh"), y, bias)


def gelu_fwd(x: Tensor) -> Tensor:
    return _in_fp32(lambda a: F.gelu(a, approximate="tanh"), x)


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return _gradient(lambda a: F.gelu(a, approximate="tanh"), g, x)


def bias_gelu_back(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    grad = _gradient(lambda a: F.gelu(a, approximate="tanh"), g, y + bias)
    return grad, grad.flatten(0, -2).sum(0).to(bias.dtype)


def relu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x: Tensor) -> Tensor:
    return _in_fp32(lambda a: F.relu(a).square(), x)


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return _in_fp32(lambda a, b: 2.0 * b * F.relu(a), x, g)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) * y."""
    return _in_fp32(lambda a, b: F.silu(a) * b, x, y)


bias_gelu_impl = bias_gelu
fast_gelu_impl = gelu_fwd


def _gradient(function, grad_output: Tensor, x: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().float().requires_grad_()
        (grad,) = torch.autograd.grad(function(leaf), leaf, grad_output.float())
    return grad.to(x.dtype)

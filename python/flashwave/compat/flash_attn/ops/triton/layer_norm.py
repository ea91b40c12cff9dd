"""Layer norm and RMS norm with dropout, a residual and a second, parallel input, in one call.

    h = dropout(x * rowscale) + dropout(x1) + residual
    y = norm(h) * weight + bias,    y1 = norm(h) * weight1 + bias1

Everything is computed in fp32; y has x's type (or out_dtype), h, which `prenorm` returns, residual's (fp32 with
residual_in_fp32).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
):
    """Returns y, or a tuple of y, y1 (with weight1), h (with prenorm) and, with return_dropout_mask, two masks of the
    elements of x and of x1 that are kept: None where nothing is dropped."""
    h, mask = _dropped(x if rowscale is None else x.float() * rowscale.unsqueeze(-1), dropout_p)
    mask1 = None
    if x1 is not None:
        if rowscale is not None:
            raise ValueError("rowscale: not together with x1")
        dropped, mask1 = _dropped(x1, dropout_p)
        h = h + dropped
    if residual is not None:
        h = h + residual.float()
    y = _normalised(h, weight, bias, eps, zero_centered_weight, is_rms_norm).to(out_dtype or x.dtype)
    results = [y if out is None else out.copy_(y)]
    if weight1 is not None:
        results.append(_normalised(h, weight1, bias1, eps, zero_centered_weight, is_rms_norm).to(out_dtype or x.dtype))
    if prenorm:
        kept_type = residual.dtype if residual is not None else (torch.float32 if residual_in_fp32 else x.dtype)
        results.append(h.to(kept_type) if residual_out is None else residual_out.copy_(h))
    if return_dropout_mask:
        results += [mask, mask1]
    return results[0] if len(results) == 1 else tuple(results)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
):
    """`layer_norm_fn` with the root mean square in place of mean and variance."""
    return layer_norm_fn(
        x,
        weight,
        bias,
        residual,
        x1,
        weight1,
        bias1,
        eps,
        dropout_p,
        rowscale,
        prenorm,
        residual_in_fp32,
        zero_centered_weight,
        True,
        return_dropout_mask,
        out_dtype,
        out,
        residual_out,
    )


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
):
    """A linear layer of `layer_norm_fn`'s y."""
    y, h = layer_norm_fn(
        x,
        norm_weight,
        norm_bias,
        residual,
        eps=eps,
        prenorm=True,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )
    out = F.linear(y.to(linear_weight.dtype), linear_weight, linear_bias)
    return (out, h) if prenorm else out


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return rms_norm_fn(
            x,
            self.weight,
            self.bias,
            residual=residual,
            eps=self.eps,
            dropout_p=self.drop.p if self.drop is not None and self.training else 0.0,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
            zero_centered_weight=self.zero_centered_weight,
        )


def layer_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    zero_centered_weight: bool = False,
    dropout_mask: Tensor | None = None,
    dropout_mask1: Tensor | None = None,
    upcast: bool = False,
):
    """`layer_norm_fn` one operation after the other in the tensors' own types, or with upcast in fp32: what a test
    compares with. The masks are those that `layer_norm_fn` returned."""
    return _reference(rms=False, **locals())


def rms_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    zero_centered_weight: bool = False,
    dropout_mask: Tensor | None = None,
    dropout_mask1: Tensor | None = None,
    upcast: bool = False,
):
    """`layer_norm_ref` with the root mean square in place of mean and variance."""
    return _reference(rms=True, **locals())


def _reference(rms: bool, x: Tensor, eps: float, dropout_p: float, prenorm: bool, upcast: bool, **given):
    def taken(name: str) -> Tensor | None:
        tensor = given[name]
        return tensor.float() if upcast and tensor is not None else tensor

    def dropped(tensor: Tensor, mask: Tensor | None) -> Tensor:
        if dropout_p == 0.0:
            return tensor
        return F.dropout(tensor, dropout_p) if mask is None else tensor.masked_fill(~mask, 0.0) / (1.0 - dropout_p)

    def normalised(weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight + 1.0 if given["zero_centered_weight"] else weight
        if not rms:
            return F.layer_norm(h.to(weight.dtype), h.shape[-1:], weight, bias, eps).to(x.dtype)
        y = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps) * weight
        return (y if bias is None else y + bias).to(x.dtype)

    h = x.float() if upcast else x
    if given["rowscale"] is not None:
        h = h * given["rowscale"].unsqueeze(-1)
    h = dropped(h, given["dropout_mask"])
    if given["x1"] is not None:
        h = h + dropped(taken("x1"), given["dropout_mask1"])
    if given["residual"] is not None:
        h = (h + taken("residual")).to(h.dtype)
    results = [normalised(taken("weight"), taken("bias"))]
    if given["weight1"] is not None:
        results.append(normalised(taken("weight1"), taken("bias1")))
    if prenorm:
        results.append(h)
    return results[0] if len(results) == 1 else tuple(results)


def _dropped(x: Tensor, p: float) -> tuple[Tensor, Tensor | None]:
    if p == 0.0:
        return x.float(), None
    kept = torch.rand(x.shape, device=x.device) >= p
    return x.float() * kept / (1.0 - p), kept


def _normalised(h: Tensor, weight: Tensor, bias: Tensor | None, eps: float, zero_centered: bool, rms: bool):
    if not rms:
        h = h - h.mean(dim=-1, keepdim=True)
    y = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps)
    y = y * (weight.float() + 1.0 if zero_centered else weight.float())
    return y if bias is None else y + bias.float()

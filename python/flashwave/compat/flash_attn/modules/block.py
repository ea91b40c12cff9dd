"""flash_attn.modules.block: a transformer block around a mixer and an MLP.

fused_dropout_add_ln changes nothing in what is computed; here it only chooses the functions of `ops.layer_norm`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from flashwave.compat.flash_attn.modules.mha import MHA
from flashwave.compat.flash_attn.modules.mlp import Mlp
from flashwave.compat.flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn

__all__ = ["Block", "ParallelBlock", "StochasticDepth"]


class StochasticDepth(nn.Module):
    """In training, drops whole rows of a batch with probability p and scales the others up."""

    def __init__(self, p: float, mode: str = "row"):
        super().__init__()
        if mode != "row":
            raise ValueError(f"mode: {mode!r} is not 'row'")
        self.p, self.mode = p, mode

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.p
        return x * kept / (1.0 - self.p)


def _mark(norms, sequence_parallel, mark_shared_params):
    """Marks that `utils.distributed` looks for."""
    for norm in norms:
        for parameter in norm.parameters():
            if sequence_parallel:
                parameter._sequence_parallel = True
            if mark_shared_params:
                parameter._shared_params = True


class _Blocks(nn.Module):
    def _parts(self, dim, mixer_cls, mlp_cls):
        self.mixer = (partial(MHA, num_heads=dim // 64) if mixer_cls is None else mixer_cls)(dim)
        self.mlp = (partial(Mlp, hidden_features=4 * dim) if mlp_cls is None else mlp_cls)(dim)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def _normed(self, norm, total, dtype):
        """norm(total); where the norms are fused, computed in fp32 and given the type of what is handed on."""
        if not self.fused_dropout_add_ln:
            return norm(total.to(norm.weight.dtype))
        rms = not isinstance(norm, nn.LayerNorm)
        return layer_norm_fn(total, norm.weight, norm.bias, eps=norm.eps, is_rms_norm=rms, out_dtype=dtype)

    def _check_fused(self):
        if self.fused_dropout_add_ln and not isinstance(self.norm1, (nn.LayerNorm, RMSNorm)):
            raise ValueError("fused_dropout_add_ln: norm_cls must make nn.LayerNorm or RMSNorm")


class Block(_Blocks):
    """prenorm: (dropout, add, norm, mixer), then the same with the MLP; the sum is handed on beside the output.
    Otherwise (mixer, dropout, add, norm), then the same with the MLP."""

    def __init__(
        self,
        dim,
        mixer_cls=None,
        mlp_cls=None,
        norm_cls=nn.LayerNorm,
        dropout_cls=nn.Dropout,
        prenorm=True,
        resid_dropout1=0.0,
        resid_dropout2=0.0,
        drop_path1=0.0,
        drop_path2=0.0,
        fused_dropout_add_ln=False,
        return_residual=False,
        residual_in_fp32=False,
        sequence_parallel=False,
        mark_shared_params=False,
    ):
        super().__init__()
        if residual_in_fp32 and not prenorm:
            raise ValueError("residual_in_fp32: only with prenorm=True")
        self.prenorm = prenorm
        self.fused_dropout_add_ln = fused_dropout_add_ln
        self.return_residual = return_residual
        self.residual_in_fp32 = residual_in_fp32
        self._parts(dim, mixer_cls, mlp_cls)
        self.dropout1, self.drop_path1, self.norm1 = (
            dropout_cls(resid_dropout1),
            StochasticDepth(drop_path1),
            norm_cls(dim),
        )
        norms = [self.norm1]
        if not isinstance(self.mlp, nn.Identity):
            self.dropout2, self.drop_path2 = dropout_cls(resid_dropout2), StochasticDepth(drop_path2)
            self.norm2 = norm_cls(dim)
            norms.append(self.norm2)
        self._check_fused()
        _mark(norms, sequence_parallel, mark_shared_params)

    def forward(self, hidden_states, residual=None, mixer_subset=None, mixer_kwargs=None):
        """Returns (output of the MLP, the sum so far) with prenorm, else the output. residual: the last block's sum."""
        mixer_kwargs = dict(mixer_kwargs or {})
        if self.prenorm:
            return self._before(hidden_states, residual, mixer_subset, mixer_kwargs)
        if residual is not None:
            raise ValueError("residual: only with prenorm=True")
        x = self._after(self.mixer, hidden_states, mixer_kwargs, self.dropout1, self.drop_path1, self.norm1)
        if isinstance(self.mlp, nn.Identity):
            return x
        return self._after(self.mlp, x, {}, self.dropout2, self.drop_path2, self.norm2)

    def _before(self, x, residual, mixer_subset, mixer_kwargs):
        x, residual = self._added(x, residual, self.dropout1, self.drop_path1, self.norm1)
        if mixer_subset is not None:
            mixer_kwargs["mixer_subset"] = mixer_subset
            residual = residual[:, mixer_subset]
        x = self.mixer(x, **mixer_kwargs)
        if not isinstance(self.mlp, nn.Identity):
            x, residual = self._added(x, residual, self.dropout2, self.drop_path2, self.norm2)
            x = self.mlp(x)
        return x, residual

    def _added(self, x, residual, dropout, drop_path, norm):
        total = drop_path(dropout(x))
        if residual is not None:
            total = total + residual
        return self._normed(norm, total, x.dtype), total.float() if self.residual_in_fp32 else total

    def _after(self, part, x, kwargs, dropout, drop_path, norm):
        out = part(x, **kwargs)
        if self.return_residual:  # the part hands back what it was given
            out, x = out
        return self._normed(norm, drop_path(dropout(out)) + x, out.dtype)


class ParallelBlock(_Blocks):
    """Mixer and MLP side by side, as in GPT-J and PaLM, on one norm (tied_norm) or on two."""

    def __init__(
        self,
        dim,
        mixer_cls=None,
        mlp_cls=None,
        norm_cls=nn.LayerNorm,
        dropout_cls=nn.Dropout,
        resid_dropout1=0.0,
        resid_dropout2=0.0,
        tied_norm=False,
        fused_dropout_add_ln=False,
        residual_in_fp32=False,
        sequence_parallel=False,
        mark_shared_params=False,
    ):
        super().__init__()
        self.tied_norm = tied_norm
        self.fused_dropout_add_ln = fused_dropout_add_ln
        self.residual_in_fp32 = residual_in_fp32
        self._parts(dim, mixer_cls, mlp_cls)
        self.dropout1, self.dropout2, self.norm1 = (
            dropout_cls(resid_dropout1),
            dropout_cls(resid_dropout2),
            norm_cls(dim),
        )
        if not tied_norm:
            self.norm2 = norm_cls(dim)
        self._check_fused()
        _mark([self.norm1] if tied_norm else [self.norm1, self.norm2], sequence_parallel, mark_shared_params)

    def forward(self, hidden_states1, hidden_states2=None, residual=None, mixer_kwargs=None):
        """hidden_states1 and 2: outputs of the last block's mixer and MLP. Returns this one's, and the sum so far."""
        total = self.dropout1(hidden_states1)
        if hidden_states2 is not None:
            total = total + self.dropout2(hidden_states2)
        if residual is not None:
            total = total + residual
        dtype = hidden_states1.dtype
        for_mixer = self._normed(self.norm1, total, dtype)
        for_mlp = for_mixer if self.tied_norm else self._normed(self.norm2, total, dtype)
        residual = total.float() if self.residual_in_fp32 else total
        return self.mixer(for_mixer, **(mixer_kwargs or {})), self.mlp(for_mlp), residual

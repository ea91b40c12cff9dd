"""flash_attn.ops.triton.layernorm: the first name of `ops.triton.layer_norm`."""

from flashwave.compat.flash_attn.ops.triton.layer_norm import layer_norm_fn, layer_norm_ref, rms_norm_fn, rms_norm_ref

__all__ = ["layer_norm_fn", "layer_norm_ref", "rms_norm_fn", "rms_norm_ref"]

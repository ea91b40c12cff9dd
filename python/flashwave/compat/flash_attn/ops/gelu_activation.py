"""flash_attn.ops.gelu_activation of 0.2: `ops.activations` under its former name."""

from flashwave.compat.flash_attn.ops.activations import bias_gelu, bias_gelu_back, bias_gelu_impl, fast_gelu_impl

__all__ = ["bias_gelu", "bias_gelu_back", "bias_gelu_impl", "fast_gelu_impl"]

"""flash_attn.ops.triton.rotary: flashwave.rotary under its upstream name."""

from flashwave.rotary import apply_rotary

__all__ = ["apply_rotary"]

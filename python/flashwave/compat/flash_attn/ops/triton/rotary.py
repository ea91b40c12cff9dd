"""flash_attn.ops.triton.rotary: flashwave.rotary under its upstream name."""

from flashwave.compat._refused import refuse_names
from flashwave.rotary import apply_rotary

__all__ = ["apply_rotary"]

__getattr__ = refuse_names(
    "flash_attn.ops.triton.rotary", "rotary_kernel", "apply_rotary, which launches the library's kernel"
)

"""Refused: flash_attn.utils.library."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.utils.library", "torch.library.triton_op")

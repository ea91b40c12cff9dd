"""Refused: flash_attn.ops.triton.linear."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.ops.triton.linear", "flash_attn.ops.fused_dense")

"""Refused: flash_attn.ops.triton.mlp."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.ops.triton.mlp", "flash_attn.ops.fused_dense.FusedMLP")

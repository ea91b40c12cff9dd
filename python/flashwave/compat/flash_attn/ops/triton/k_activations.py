"""Refused: flash_attn.ops.triton.k_activations."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.ops.triton.k_activations", "flash_attn.ops.activations")

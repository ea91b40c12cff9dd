"""Refused: flash_attn.flash_attn_triton_og."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.flash_attn_triton_og", "flash_attn_func(q, k, v, causal=..., softmax_scale=...)")

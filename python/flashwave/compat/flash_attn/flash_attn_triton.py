"""Refused: flash_attn.flash_attn_triton."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.flash_attn_triton", "flash_attn_func(q, k, v, bias=..., causal=..., softmax_scale=...)")

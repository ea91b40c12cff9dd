"""Refused: flash_attn.rotary."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.rotary", "flash_attn.layers.rotary, whose RotaryEmbedding takes packed qkv")

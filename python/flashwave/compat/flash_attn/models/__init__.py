"""Refused: flash_attn.models."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.models", "transformers' models with attn_implementation='flash_attention_2' or 'flashwave'")

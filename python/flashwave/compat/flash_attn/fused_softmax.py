"""Refused: flash_attn.fused_softmax."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.fused_softmax", "flash_attn_func, which never stores the scores, or torch.softmax")

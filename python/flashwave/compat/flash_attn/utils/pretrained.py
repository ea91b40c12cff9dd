"""Refused: flash_attn.utils.pretrained."""

from flashwave.compat._refused import refusal

raise refusal("flash_attn.utils.pretrained", "transformers' AutoModel.from_pretrained(name).state_dict()")

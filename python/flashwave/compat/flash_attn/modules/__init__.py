"""The names of flash_attn.modules."""

"""The names of flash_attn.utils."""

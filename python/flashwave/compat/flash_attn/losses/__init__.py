"""The names of flash_attn.losses."""

"""The names of flash_attn.layers."""

"""The names of flash_attn.ops.triton. Nothing here needs Triton."""

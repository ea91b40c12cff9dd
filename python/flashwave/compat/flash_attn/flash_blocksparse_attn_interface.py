"""Refused: block-sparse attention of flash-attn 1.x."""

raise ImportError(
    "flash_attn.flash_blocksparse_attn_interface: flashwave has no block-sparse attention; it has sliding windows and "
    "biases: flash_attn_func(..., window_size=(left, right), bias=...)"
)

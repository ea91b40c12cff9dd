"""Refused: block-sparse attention of flash-attn 1.x."""

raise ImportError(
    "flash_attn.flash_blocksparse_attention: flashwave has no block-sparse attention. It has dense, sliding-window and biased attention: "
    "flash_attn_func(..., window_size=(left, right)) and its keyword bias="
)

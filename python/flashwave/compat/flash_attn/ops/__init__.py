"""Element-wise operations of flash_attn.ops, in plain torch: fp32 inside, the input's type outside."""

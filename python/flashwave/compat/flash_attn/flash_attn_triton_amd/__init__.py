"""Empty: vLLM looks whether this package exists before it uses flash_attn on Radeon GPUs, and imports nothing of it."""

"""Refused: flash_attn.utils.testing."""

from flashwave.compat._refused import refusal

raise refusal(
    "flash_attn.utils.testing",
    "tests/test_flash_attn.py of the source tree has a reference; python -m flashwave.doctor checks an installation",
)

"""Attention on NumPy arrays, and on any object in the memory of the CPU that speaks DLPack. Needs no torch."""

from .functions import DTYPES, Gradients, attention, attention_backward

__all__ = ["DTYPES", "Gradients", "attention", "attention_backward"]

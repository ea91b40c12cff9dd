"""Attention composed of ordinary PyTorch operations: every feature of a `Problem`, on any device that PyTorch runs on.

It is what a device without a native kernel uses, so nothing is left out: docs/semantics.md is the contract, forward and
backward. No operation waits for the device, so a call can be captured in a CUDA graph; no sum depends on a race, so the
same inputs give the same bits. Scores exist for one tile of queries and keys at a time (`blocks.py`): memory is O(N).
"""

from .backward import backward
from .forward import forward

__all__ = ["backward", "forward"]

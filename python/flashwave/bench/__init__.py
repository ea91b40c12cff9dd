"""Benchmarks against standard PyTorch attention: `python -m flashwave.bench` (docs/benchmarks.md)."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is loaded: its profiler is chatty otherwise

"""Triton's kernels for NVIDIA and AMD GPUs. Importing this package does not import Triton."""

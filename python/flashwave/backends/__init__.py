"""Code that computes attention beside the library: Triton kernels, PyTorch operations."""

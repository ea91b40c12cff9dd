"""The library's kernels: structs filled from tensors, calls through ctypes, devices that tensors are copied to."""

# Which file is compiled for which NVIDIA GPUs.

# Which file is compiled for which GPUs. The register-hungry kernels are written in scalar operations on purpose: packed
# ones do not issue beside matrix instructions.
amd_code_objects(amd generic all)

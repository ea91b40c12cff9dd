# Which file is compiled for which GPUs. Packed arithmetic does not issue beside matrix instructions, so the compiler is kept
# from making it up; the loops of RDNA are written for one compute unit of a pair.
amd_code_objects(amd tiny all)
amd_code_objects(amd decode cdna -fno-slp-vectorize)
amd_code_objects(amd decode rdna -fno-slp-vectorize)
amd_code_objects(amd combine all)
amd_code_objects(cdna fwd cdna2 -fno-slp-vectorize)
amd_code_objects(cdna fwd_general cdna2 -fno-slp-vectorize)
amd_code_objects(cdna fwd_gfx908 gfx908 -fno-slp-vectorize)
amd_code_objects(rdna fwd rdna -fno-slp-vectorize -mcumode)
amd_code_objects(rdna fwd_general rdna -fno-slp-vectorize -mcumode)
amd_code_objects(amd generic all)
amd_code_objects(amd append all)
amd_code_objects(amd rotary all)

# Which file is compiled for which GPUs. Packed arithmetic does not issue beside matrix instructions, so the compiler is kept
# from making it up; the loops of RDNA are written for one compute unit of a pair, and with 16-bit registers gfx12 packs two
# halves in one instruction.
set(matrix -fno-slp-vectorize)
set(rdna_loop ${matrix} -mcumode -Xclang -target-feature -Xclang +real-true16)
amd_code_objects(amd tiny all)
amd_code_objects(amd decode cdna ${matrix})
amd_code_objects(amd decode rdna ${matrix})
amd_code_objects(cdna fwd cdna2 ${matrix})
amd_code_objects(cdna fwd_general cdna2 ${matrix})
amd_code_objects(cdna fwd_gfx908 gfx908 ${matrix})
amd_code_objects(cdna fwd_gfx908_general gfx908 ${matrix})
amd_code_objects(rdna fwd rdna ${rdna_loop})
amd_code_objects(rdna fwd_general rdna ${rdna_loop})
amd_code_objects(generic attention all)
amd_code_objects(generic combine all)
amd_code_objects(generic append all)
amd_code_objects(generic rotary all)

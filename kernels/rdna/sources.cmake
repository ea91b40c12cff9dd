# The loops are written for one compute unit of a pair, and with 16-bit registers gfx12 packs two halves in one instruction.
set(flags ${matrix} -mcumode -Xclang -target-feature -Xclang +real-true16)
amd_code_objects(rdna fwd "gfx1100;gfx1201" "fwd;fwd_modified" ${flags})
amd_code_objects(rdna bwd "gfx1100;gfx1201" "bwd;bwd_modified" ${flags})

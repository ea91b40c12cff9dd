# Which file is compiled for which GPUs, in which parts. Packed arithmetic does not issue beside matrix instructions, so the
# compiler is kept from making it up; the loops of RDNA are written for one compute unit of a pair, and with 16-bit registers
# gfx12 packs two halves in one instruction.
set(matrix -fno-slp-vectorize)
set(rdna_loop ${matrix} -mcumode -Xclang -target-feature -Xclang +real-true16)
set(cdna2 gfx90a gfx942 gfx950)  # and later
set(rdna gfx1100 gfx1201)
set(by_head_dim d64 d96 d128 d192 d256)
foreach(kind fwd fwd_general fwd_gfx908 fwd_gfx908_general)
  set(${kind} ${by_head_dim})
  list(TRANSFORM ${kind} PREPEND ${kind}_)
endforeach()
list(REMOVE_ITEM fwd_gfx908 fwd_gfx908_d256)  # only the general one: variants.def says why

amd_code_objects(amd tiny "${all}" "")
amd_code_objects(amd decode "gfx908;${cdna2};${rdna}" "" ${matrix})
amd_code_objects(cdna fwd "${cdna2}" "${fwd};${fwd_general}" ${matrix})
amd_code_objects(cdna fwd gfx908 "${fwd_gfx908};${fwd_gfx908_general}" ${matrix})
amd_code_objects(rdna fwd "${rdna}" "fwd;fwd_general" ${rdna_loop})
foreach(file attention combine append rotary)
  amd_code_objects(generic ${file} "${all}" "")
endforeach()

# Kernels that every AMD GPU runs, and those of 16 x 16 products wherever there are matrix instructions.
amd_code_objects(amd tiny "${all}" "")
amd_code_objects(amd bwd_frame "${all}" "")
amd_code_objects(amd convert "${all}" "")
amd_code_objects(amd bwd_scores "gfx908;gfx90a;gfx942;gfx950;gfx1100;gfx1201" "" ${matrix})
amd_code_objects(amd decode "gfx908;gfx90a;gfx942;gfx950;gfx1100;gfx1201" "" ${matrix})

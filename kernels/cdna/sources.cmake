set(plain d64 d96 d128 d192v128 d256)
set(parts)
foreach(dims IN LISTS plain)
  list(APPEND parts fwd_${dims} fwd_modified_${dims})
endforeach()
amd_code_objects(cdna fwd "gfx90a;gfx942;gfx950" "${parts}" ${matrix})
list(TRANSFORM parts REPLACE "^fwd" fwd_gfx908)
list(REMOVE_ITEM parts fwd_gfx908_d256)  # only the _modified one: kernels.def says why
amd_code_objects(cdna fwd gfx908 "${parts}" ${matrix})
amd_code_objects(cdna bwd "gfx90a;gfx942;gfx950"
  "bwd_head_d64;bwd_head_d128;bwd_d64;bwd_d96;bwd_d128;bwd_modified_d128;bwd_dkdv_d64;bwd_dkdv_d128;bwd_dkdv_d192v128;bwd_dkdv_d192;bwd_dkdv_d256;bwd_dkdv_modified_d128;bwd_dkdv_modified_d256" ${matrix})
amd_code_objects(cdna bwd gfx908 "bwd_gfx908_d64;bwd_gfx908_d128;bwd_gfx908_modified_d128" ${matrix})

set(plain d64 d96 d128 d192v128 d256)
set(parts)
foreach(dims IN LISTS plain)
  list(APPEND parts fwd_${dims} fwd_general_${dims})
endforeach()
amd_code_objects(cdna fwd "gfx90a;gfx942;gfx950" "${parts}" ${matrix})
list(TRANSFORM parts REPLACE "^fwd" fwd_gfx908)
list(REMOVE_ITEM parts fwd_gfx908_d256)  # only the general one: kernels.def says why
amd_code_objects(cdna fwd gfx908 "${parts}" ${matrix})

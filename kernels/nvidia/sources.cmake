nvidia_code_objects(nvidia decode compute_80 "decode_d64;decode_d128;decode_d192v128;decode_d256" sm_80 sm_90)
nvidia_code_objects(nvidia tiny compute_80 tiny sm_80 sm_90)

nvidia_code_objects(ampere fwd compute_75 "fwd;fwd_general" sm_75)
nvidia_code_objects(ampere fwd compute_80 "fwd;fwd_general" sm_80 sm_90)

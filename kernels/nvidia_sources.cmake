# Which file is compiled for which NVIDIA GPUs.
set(every sm_75 sm_80 sm_90)
nvidia_shared_code_objects(generic attention ${every})
nvidia_shared_code_objects(generic combine ${every})
nvidia_shared_code_objects(generic append ${every})
nvidia_shared_code_objects(generic rotary ${every})
nvidia_code_objects(hopper fwd sm_90a)
nvidia_code_objects(hopper fwd_general sm_90a)

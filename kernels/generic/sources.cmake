foreach(file attention combine append fill rotary)
  amd_code_objects(generic ${file} "${all}" "")
  nvidia_shared_code_objects(generic ${file} compute_75 sm_75 sm_80 sm_90)
endforeach()

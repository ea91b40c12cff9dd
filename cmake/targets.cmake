# Which GPUs are compiled for: flashwave_chosen_targets(RESULT OPTION [ENVIRONMENT-NAME...]) is the list that the option gives,
# else the first of the environment's variables that is set, else "all". Names are separated by ';', ',' or blanks, and may
# carry features, as in gfx90a:sramecc+:xnack-. In ORIGIN: where it came from, for messages.
function(flashwave_chosen_targets result option)
  set(text "${${option}}")
  set(origin ${option})
  foreach(name IN LISTS ARGN)
    if(text STREQUAL "" AND NOT "$ENV{${name}}" STREQUAL "")
      set(text "$ENV{${name}}")
      set(origin "the environment's ${name}")
    endif()
  endforeach()
  if(text STREQUAL "")
    set(text all)
  endif()
  string(REGEX REPLACE "[;, \t]+" ";" names "${text}")
  list(TRANSFORM names REPLACE ":.*" "")
  list(TRANSFORM names TOLOWER)
  list(REMOVE_ITEM names "")
  list(REMOVE_DUPLICATES names)
  set(${result} ${names} PARENT_SCOPE)
  set(ORIGIN ${origin} PARENT_SCOPE)
endfunction()

# Says that a kind of kernel is left out, or stops where it was asked for by name. MAKER: AMD or NVIDIA; the reason is kept
# for `flashwave devices`.
macro(flashwave_left_out maker targets reason)
  if(NOT "${targets}" STREQUAL "all" AND NOT "${targets}" STREQUAL "none")
    message(FATAL_ERROR "${ORIGIN} asks for kernels of ${maker} GPUs (${targets}), but ${reason}.")
  endif()
  message(STATUS "Left out: the kernels of ${maker} GPUs; ${reason}.")
  set(FLASHWAVE_${maker}_KERNELS 0 PARENT_SCOPE)
  set(FLASHWAVE_${maker}_LEFT_OUT "${reason}" PARENT_SCOPE)
endmacro()

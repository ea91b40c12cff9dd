# The kernels of NVIDIA GPUs: one nvcc call for each (target, part), clang and ptxas for those that AMD GPUs share; all cubins
# and PTX in one packed archive. nvcc may be the one of PyPI (scripts/setup puts it into out/venv-cuda): no CUDA toolkit, no
# driver.
set(FLASHWAVE_NVIDIA_TARGETS "" CACHE STRING "NVIDIA GPUs to compile for: all (the default), none, or names (sm_80;sm_90)")
flashwave_chosen_targets(nvidia_targets FLASHWAVE_NVIDIA_TARGETS FLASHWAVE_NVIDIA_TARGETS)

# What a GPU runs: PTX of a virtual architecture, and machine code from it.
set(needed)
foreach(name IN LISTS nvidia_targets)
  string(REGEX REPLACE "^(sm_)?([0-9]+)\\.?([0-9])(a?)$" "\\2\\3" number "${name}")
  if(name STREQUAL "all")
    list(APPEND needed compute_75 sm_75 compute_80 sm_80 sm_90)
  elseif(number STREQUAL "75")
    list(APPEND needed compute_75 sm_75)
  elseif(number MATCHES "^8[0-9]$")
    list(APPEND needed compute_75 compute_80 sm_80)
  elseif(number STREQUAL "90")
    list(APPEND needed compute_75 compute_80 sm_90)
  elseif(number MATCHES "^1[0-9][0-9]$")  # by PTX
    list(APPEND needed compute_75 compute_80)
  elseif(NOT name STREQUAL "none")
    message(FATAL_ERROR "${ORIGIN} names an unknown NVIDIA GPU, ${name}. Known: sm_75, sm_80 to sm_89, sm_90, sm_100 and later; or all, none.")
  endif()
endforeach()
list(REMOVE_DUPLICATES needed)
if(NOT needed)
  flashwave_left_out(NVIDIA none "none are chosen (${ORIGIN})")
  return()
endif()

file(GLOB pypi_nvcc ${PROJECT_SOURCE_DIR}/out/venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin)
find_program(FLASHWAVE_NVCC NO_CACHE NAMES nvcc HINTS ${pypi_nvcc} DOC "nvcc >= 13 that compiles for NVIDIA GPUs")
if(NOT FLASHWAVE_NVCC)
  flashwave_left_out(NVIDIA "${nvidia_targets}" "nvcc was not found (scripts/venv --cuda fetches it from PyPI, FLASHWAVE_NVCC names one)")
  return()
endif()
get_filename_component(nvcc_folder "${FLASHWAVE_NVCC}" DIRECTORY)
find_program(FLASHWAVE_PTXAS NO_CACHE NAMES ptxas HINTS ${nvcc_folder} DOC "ptxas that comes with nvcc")
find_program(FLASHWAVE_CUDA_CLANG NO_CACHE NAMES clang++-22 clang++-21 clang++-20 clang++-19
             DOC "clang >= 19 that compiles the kernels AMD and NVIDIA GPUs share")
if(NOT FLASHWAVE_PTXAS OR NOT FLASHWAVE_CUDA_CLANG)
  flashwave_left_out(NVIDIA "${nvidia_targets}" "nvcc needs ptxas beside it and clang >= 19 (Debian: clang-22) for the kernels AMD GPUs share")
  return()
endif()
execute_process(COMMAND ${FLASHWAVE_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
string(REGEX MATCH "V([0-9]+)\\.([0-9.]+)" nvcc_version "${nvcc_version}")
if(NOT CMAKE_MATCH_1 GREATER_EQUAL 13)
  flashwave_left_out(NVIDIA "${nvidia_targets}" "${FLASHWAVE_NVCC} is older than nvcc 13 (scripts/venv --cuda fetches a newer one from PyPI)")
  return()
endif()
# Some file systems and hosts refuse to run it, and nvcc needs a host compiler.
file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cu "__global__ void probe() {}\n")
execute_process(COMMAND ${FLASHWAVE_NVCC} -cubin -std=c++20 -gencode arch=compute_90a,code=sm_90a
                        ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cu -o ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cubin
                RESULT_VARIABLE nvidia_missing OUTPUT_QUIET ERROR_QUIET)
if(nvidia_missing)
  flashwave_left_out(NVIDIA "${nvidia_targets}" "${FLASHWAVE_NVCC} cannot compile an empty kernel; it needs a host compiler (Debian: g++)")
  return()
endif()
list(JOIN nvidia_targets " " nvidia_text)
message(STATUS "NVIDIA kernels for ${nvidia_text}, by ${FLASHWAVE_NVCC} (${nvcc_version})")
set(FLASHWAVE_NVIDIA_KERNELS 1 PARENT_SCOPE)

set(nvidia_code)
set(nvidia_words)
set(nvidia_flags -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings -I${PROJECT_SOURCE_DIR})
flashwave_cached_tool(make_cubin ${FLASHWAVE_NVCC} -cubin "cubin ${nvcc_version}")
flashwave_cached_tool(make_ptx ${FLASHWAVE_NVCC} -ptx "ptx ${nvcc_version}")
flashwave_cached_tool(assemble ${FLASHWAVE_PTXAS} ptxas "ptxas ${nvcc_version}")

# kernels/FOLDER/FILE.cu for one GPU alone (sm_90a), by nvcc, once for each of the PARTS, which are sources of rows without
# "FOLDER_" (kernels/common/part.h). ptxas warns where it serialises wgmma, and warnings are errors.
function(nvidia_code_object folder file target parts)
  string(REGEX REPLACE "a$" "" plain ${target})
  if(NOT plain IN_LIST needed)
    return()
  endif()
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file}.cu)
  string(REPLACE sm_ compute_ virtual ${target})
  foreach(part IN LISTS parts)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${part}_${target})
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${make_cubin} -gencode arch=${virtual},code=${target} -Xptxas=-Werror ${nvidia_flags}
              -DFW_PART_${folder}_${part}=1 -MD -MF ${output}.d -MT ${output} -c ${source} -o ${output}
      DEPENDS ${source} DEPFILE ${output}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${part} for ${target}")
    list(APPEND nvidia_code ${output})
    list(APPEND nvidia_words ${folder}_${part} ${target} ${output})
  endforeach()
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# Machine code of the TARGETS by ptxas from PTX, and the PTX itself. That it assembles shows that its version may be named.
function(nvidia_assemble source virtual ptx)
  list(APPEND nvidia_code ${ptx})
  list(APPEND nvidia_words ${source} ${virtual} ${ptx})
  foreach(target IN LISTS ARGN)
    if(target IN_LIST needed)
      set(output ${CMAKE_CURRENT_BINARY_DIR}/${source}_${target})
      add_custom_command(OUTPUT ${output}
                         COMMAND ${CMAKE_COMMAND} -E env CCACHE_EXTRAFILES=${ptx} ${assemble} -arch=${target} -O3 -x cu
                                 -c ${ptx} -o ${output}
                         DEPENDS ${ptx} VERBATIM COMMENT "NVIDIA kernels ${source} for ${target}")
      list(APPEND nvidia_code ${output})
      list(APPEND nvidia_words ${source} ${target} ${output})
    endif()
  endforeach()
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# kernels/FOLDER/FILE.cu: PTX of VIRTUAL (compute_80) by nvcc, machine code of the TARGETS from it, for each of the PARTS.
function(nvidia_code_objects folder file virtual parts)
  if(NOT virtual IN_LIST needed)
    return()
  endif()
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file}.cu)
  foreach(part IN LISTS parts)
    set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${part}_${virtual}.ptx)
    add_custom_command(
      OUTPUT ${ptx}
      COMMAND ${make_ptx} -arch=${virtual} ${nvidia_flags} -DFW_PART_${folder}_${part}=1 -MD -MF ${ptx}.d -MT ${ptx}
              -c ${source} -o ${ptx}
      # Drivers refuse PTX that says it is newer than they are, whatever is in it.
      COMMAND sed -i "s/^[.]version .*/.version ${ptx_version}/" ${ptx}
      DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${part} for ${virtual}")
    nvidia_assemble(${folder}_${part} ${virtual} ${ptx} ${ARGN})
  endforeach()
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# The same for kernels/FOLDER/FILE.hip, which AMD GPUs share: clang makes the PTX, without CUDA's headers.
function(nvidia_shared_code_objects folder file virtual)
  if(NOT virtual IN_LIST needed)
    return()
  endif()
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file}.hip)
  string(REPLACE compute_ sm_ real ${virtual})
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${file}_${virtual}.ptx)
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${FLASHWAVE_CUDA_CLANG} -x cuda --cuda-device-only --cuda-gpu-arch=${real} -nocudainc -nocudalib -std=c++20 -O3
            -Wall -Wextra -Werror -ffp-contract=fast -I${PROJECT_SOURCE_DIR} -S ${source} -o ${ptx}
            -Xclang -target-feature -Xclang +ptx${ptx_feature}
            # The driver's -MD does nothing for device code.
            -Xclang -dependency-file -Xclang ${ptx}.d -Xclang -MT -Xclang ${ptx}
    DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${file} for ${virtual}")
  nvidia_assemble(${folder}_${file} ${virtual} ${ptx} ${ARGN})
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# That of clang is of CUDA 12.0, the oldest driver that is supported; nvcc writes some pragmas that are of CUDA 12.3.
set(ptx_feature 80)
set(ptx_version 8.3)
include(${CMAKE_CURRENT_SOURCE_DIR}/nvidia_sources.cmake)

set(nvidia_archive ${PROJECT_BINARY_DIR}/nvidia_kernels.bin)
add_custom_command(OUTPUT ${nvidia_archive} COMMAND pack_code_objects ${nvidia_archive} ${nvidia_words}
                   DEPENDS pack_code_objects ${nvidia_code} VERBATIM COMMENT "Packing the NVIDIA kernels")
add_custom_target(flashwave_nvidia_kernels DEPENDS ${nvidia_archive})
set(FLASHWAVE_NVIDIA_CODE ${nvidia_archive} PARENT_SCOPE)

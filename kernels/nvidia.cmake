# The kernels of NVIDIA GPUs: one nvcc call for each (target, file), clang and ptxas for those that AMD GPUs share; all
# cubins and PTX in one packed archive. nvcc may be
# the one of PyPI (scripts/setup puts it into out/venv-cuda): no CUDA toolkit, no driver. A build may take the archive of
# another one (-DFLASHWAVE_NVIDIA_ARCHIVE=FILE).
set(FLASHWAVE_NVIDIA_ARCHIVE "" CACHE FILEPATH "Take this archive of NVIDIA machine code instead of compiling it")
file(GLOB pypi_nvcc ${PROJECT_SOURCE_DIR}/out/venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin)
find_program(FLASHWAVE_NVCC NAMES nvcc HINTS ${pypi_nvcc} DOC "nvcc >= 13 that compiles for NVIDIA GPUs")
get_filename_component(nvcc_folder "${FLASHWAVE_NVCC}" DIRECTORY)
find_program(FLASHWAVE_PTXAS NAMES ptxas HINTS ${nvcc_folder} DOC "ptxas that comes with nvcc")
find_program(FLASHWAVE_CUDA_CLANG NAMES clang++-22 clang++-21 clang++-20 clang++-19 clang++
             DOC "clang >= 19 that compiles the kernels AMD and NVIDIA GPUs share")
set(nvidia_possible OFF)
if(FLASHWAVE_NVIDIA_ARCHIVE)
  set(nvidia_possible ON)
elseif(FLASHWAVE_NVCC AND FLASHWAVE_PTXAS AND FLASHWAVE_CUDA_CLANG)
  file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cu "__global__ void probe() {}\n")
  execute_process(COMMAND ${FLASHWAVE_NVCC} -cubin -std=c++20 -gencode arch=compute_90a,code=sm_90a
                          ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cu -o ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cubin
                  RESULT_VARIABLE nvidia_missing OUTPUT_QUIET ERROR_QUIET)
  if(NOT nvidia_missing)
    set(nvidia_possible ON)
  endif()
endif()
option(FLASHWAVE_BUILD_NVIDIA "Build the kernels of NVIDIA GPUs (needs nvcc >= 13)" ${nvidia_possible})

set(FLASHWAVE_NVIDIA_KERNELS 0 PARENT_SCOPE)
if(NOT FLASHWAVE_BUILD_NVIDIA)
  return()
endif()
set(FLASHWAVE_NVIDIA_KERNELS 1 PARENT_SCOPE)
if(FLASHWAVE_NVIDIA_ARCHIVE)
  set(FLASHWAVE_NVIDIA_CODE ${FLASHWAVE_NVIDIA_ARCHIVE} PARENT_SCOPE)
  add_custom_target(flashwave_nvidia_kernels)
  return()
endif()

set(nvidia_code)
set(nvidia_words)
set(nvidia_flags -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings -I${PROJECT_SOURCE_DIR})

# kernels/FOLDER/NAME.cu for one GPU alone (sm_90a), by nvcc. ptxas warns where it serialises wgmma, and warnings are errors.
function(nvidia_code_object folder name target)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name}.cu)
  string(REPLACE sm_ compute_ virtual ${target})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${target})
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${FLASHWAVE_NVCC} -cubin -gencode arch=${virtual},code=${target} -Xptxas -Werror ${nvidia_flags}
            -MD -MF ${output}.d -MT ${output} ${source} -o ${output}
    DEPENDS ${source} DEPFILE ${output}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${name} for ${target}")
  set(nvidia_code ${nvidia_code} ${output} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} ${folder}_${name} ${target} ${output} PARENT_SCOPE)
endfunction()

# Machine code of the TARGETS by ptxas from PTX, and the PTX itself. That it assembles shows that its version may be named.
function(nvidia_assemble folder name virtual ptx)
  list(APPEND nvidia_code ${ptx})
  list(APPEND nvidia_words ${folder}_${name} ${virtual} ${ptx})
  foreach(target IN LISTS ARGN)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${target})
    add_custom_command(OUTPUT ${output} COMMAND ${FLASHWAVE_PTXAS} -arch=${target} -O3 ${ptx} -o ${output} DEPENDS ${ptx}
                       VERBATIM COMMENT "NVIDIA kernels ${folder}/${name} for ${target}")
    list(APPEND nvidia_code ${output})
    list(APPEND nvidia_words ${folder}_${name} ${target} ${output})
  endforeach()
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# kernels/FOLDER/NAME.cu: PTX of VIRTUAL (compute_80) by nvcc, machine code of the TARGETS from it.
function(nvidia_code_objects folder name virtual)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name}.cu)
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${virtual})
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${FLASHWAVE_NVCC} -ptx -arch=${virtual} ${nvidia_flags} -MD -MF ${ptx}.d -MT ${ptx} ${source} -o ${ptx}
    # Drivers refuse PTX that says it is newer than they are, whatever is in it.
    COMMAND sed -i "s/^[.]version .*/.version ${ptx_version}/" ${ptx}
    DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${name} for ${virtual}")
  nvidia_assemble(${folder} ${name} ${virtual} ${ptx} ${ARGN})
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# The same for kernels/FOLDER/NAME.hip, which AMD GPUs share: clang makes the PTX, without CUDA's headers.
function(nvidia_shared_code_objects folder name virtual)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name}.hip)
  string(REPLACE compute_ sm_ real ${virtual})
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${virtual})
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${FLASHWAVE_CUDA_CLANG} -x cuda --cuda-device-only --cuda-gpu-arch=${real} -nocudainc -nocudalib -std=c++20 -O3
            -Wall -Wextra -Werror -ffp-contract=fast -I${PROJECT_SOURCE_DIR} -S ${source} -o ${ptx}
            -Xclang -target-feature -Xclang +ptx${ptx_feature}
            # The driver's -MD does nothing for device code.
            -Xclang -dependency-file -Xclang ${ptx}.d -Xclang -MT -Xclang ${ptx}
    DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${name} for ${virtual}")
  nvidia_assemble(${folder} ${name} ${virtual} ${ptx} ${ARGN})
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

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
# Compiles kernels/FOLDER/NAME.cu for each of the TARGETS: sm_90a and the like give machine code, compute_80 and the like
# PTX. Serialised wgmma and spills are warnings of ptxas, and warnings are errors.
function(nvidia_code_objects folder name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name}.cu)
  foreach(target IN LISTS ARGN)
    string(REGEX REPLACE "^(sm|compute)_" "" number ${target})
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${target})
    set(flags -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings -I${PROJECT_SOURCE_DIR} -MD -MF ${output}.d -MT ${output})
    if(target MATCHES "^sm_")
      set(compile COMMAND ${FLASHWAVE_NVCC} -cubin -gencode arch=compute_${number},code=${target} -Xptxas -Werror ${flags}
                          ${source} -o ${output})
    else()
      set(compile COMMAND ${FLASHWAVE_NVCC} -ptx -arch=${target} ${flags} ${source} -o ${output}
                  # Drivers refuse PTX that says it is newer than they are, whatever is in it.
                  COMMAND sed -i "s/^[.]version .*/.version ${ptx_version}/" ${output})
    endif()
    add_custom_command(OUTPUT ${output} ${compile} DEPENDS ${source} DEPFILE ${output}.d VERBATIM
                       COMMENT "NVIDIA kernels ${folder}/${name} for ${target}")
    list(APPEND nvidia_code ${output})
    list(APPEND nvidia_words ${folder}_${name} ${target} ${output})
  endforeach()
  set(nvidia_code ${nvidia_code} PARENT_SCOPE)
  set(nvidia_words ${nvidia_words} PARENT_SCOPE)
endfunction()

# The same for kernels/FOLDER/NAME.hip, which AMD GPUs share: clang makes PTX of it, without CUDA's headers, and ptxas the
# machine code. PTX comes for the oldest of the TARGETS.
function(nvidia_shared_code_objects folder name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name}.hip)
  list(GET ARGN 0 oldest)
  string(REPLACE sm_ compute_ virtual ${oldest})
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${virtual})
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${FLASHWAVE_CUDA_CLANG} -x cuda --cuda-device-only --cuda-gpu-arch=${oldest} -nocudainc -nocudalib -std=c++20 -O3
            -Wall -Wextra -Werror -ffp-contract=fast -I${PROJECT_SOURCE_DIR} -S ${source} -o ${ptx}
            -Xclang -target-feature -Xclang +ptx${ptx_feature}
            # The driver's -MD does nothing for device code.
            -Xclang -dependency-file -Xclang ${ptx}.d -Xclang -MT -Xclang ${ptx}
    DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${name} for ${virtual}")
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

# The first with everything that sm_80 kernels use, and of CUDA 12.0, the oldest driver that is supported.
set(ptx_version 8.0)
set(ptx_feature 80)
include(${CMAKE_CURRENT_SOURCE_DIR}/nvidia_sources.cmake)

set(nvidia_archive ${PROJECT_BINARY_DIR}/nvidia_kernels.bin)
add_custom_command(OUTPUT ${nvidia_archive} COMMAND pack_code_objects ${nvidia_archive} ${nvidia_words}
                   DEPENDS pack_code_objects ${nvidia_code} VERBATIM COMMENT "Packing the NVIDIA kernels")
add_custom_target(flashwave_nvidia_kernels DEPENDS ${nvidia_archive})
set(FLASHWAVE_NVIDIA_CODE ${nvidia_archive} PARENT_SCOPE)

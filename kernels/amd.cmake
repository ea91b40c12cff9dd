# The kernels of AMD GPUs: one clang call for each (architecture, file), no ROCm; all code objects in one packed archive.
# A build may take the archive of another one (-DFLASHWAVE_AMD_ARCHIVE=FILE).
set(FLASHWAVE_AMD_ARCHIVE "" CACHE FILEPATH "Take this archive of AMD code objects instead of compiling them")
find_program(FLASHWAVE_AMD_COMPILER NAMES clang++-22 clang++-21 clang++-20 clang++-19 clang++
             DOC "clang >= 19 that compiles for AMD GPUs")
set(amd_possible OFF)
if(FLASHWAVE_AMD_ARCHIVE)
  set(amd_possible ON)
elseif(FLASHWAVE_AMD_COMPILER)
  # Linked as well: a clang without lld makes no code object.
  execute_process(COMMAND ${FLASHWAVE_AMD_COMPILER} --target=amdgcn-amd-amdhsa -mcpu=gfx950 -nogpulib -x c /dev/null
                          -o ${CMAKE_BINARY_DIR}/CMakeFiles/amd_probe.co
                  RESULT_VARIABLE amd_missing OUTPUT_QUIET ERROR_QUIET)
  if(NOT amd_missing)
    set(amd_possible ON)
  endif()
endif()
option(FLASHWAVE_BUILD_AMD "Build the kernels of AMD GPUs (needs clang >= 19 with the AMDGPU target)" ${amd_possible})

# Defined to 1 for everything that reads the lists of kernels.
set(FLASHWAVE_AMD_KERNELS 0 PARENT_SCOPE)
if(NOT FLASHWAVE_BUILD_AMD)
  return()
endif()
set(FLASHWAVE_AMD_KERNELS 1 PARENT_SCOPE)
if(FLASHWAVE_AMD_ARCHIVE)
  set(FLASHWAVE_AMD_CODE ${FLASHWAVE_AMD_ARCHIVE} PARENT_SCOPE)
  add_custom_target(flashwave_amd_kernels)
  return()
endif()

set(gfx908 gfx908)
set(cdna2 gfx90a gfx942 gfx950)  # and later
set(cdna gfx908 ${cdna2})
set(rdna gfx1100 gfx1201)
set(all gfx900 gfx906 ${cdna} gfx1010 gfx1030 ${rdna})

set(code_objects)
set(archive_words)
# Compiles kernels/FOLDER/NAME.hip for each of the architectures; OPTIONS... are further flags.
function(amd_code_objects folder name architectures)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name}.hip)
  foreach(arch IN LISTS ${architectures})
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${name}_${arch}.co)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${FLASHWAVE_AMD_COMPILER} -x hip --offload-device-only --no-gpu-bundle-output -nogpulib -nogpuinc
              --offload-arch=${arch} -mcode-object-version=5 -std=c++20 -O3 -Wall -Wextra -Werror -ffp-contract=fast
              ${ARGN} -I${PROJECT_SOURCE_DIR} -fuse-cuid=none ${source} -o ${output}
              # The driver's -MD does nothing for device code.
              -Xclang -dependency-file -Xclang ${output}.d -Xclang -MT -Xclang ${output}
      DEPENDS ${source} DEPFILE ${output}.d VERBATIM COMMENT "AMD kernels ${folder}/${name} for ${arch}")
    list(APPEND code_objects ${output})
    list(APPEND archive_words ${folder}_${name} ${arch} ${output})
  endforeach()
  set(code_objects ${code_objects} PARENT_SCOPE)
  set(archive_words ${archive_words} PARENT_SCOPE)
endfunction()

include(${CMAKE_CURRENT_SOURCE_DIR}/amd_sources.cmake)

set(archive ${PROJECT_BINARY_DIR}/amd_kernels.bin)
add_custom_command(OUTPUT ${archive} COMMAND pack_code_objects ${archive} ${archive_words}
                   DEPENDS pack_code_objects ${code_objects} VERBATIM COMMENT "Packing the AMD kernels")
add_custom_target(flashwave_amd_kernels DEPENDS ${archive})
set(FLASHWAVE_AMD_CODE ${archive} PARENT_SCOPE)

# The machine code of GPU kernels: one call of a compiler for each (GPU, part of a list), all of a maker's in one packed
# archive. AMD's needs a clang and no ROCm; NVIDIA's needs nvcc (that of PyPI does: scripts/setup puts it into out/venv-cuda)
# and no driver. What is compiled for which GPUs, each folder says in its sources.cmake, in the words at the end of this file.
set(FLASHWAVE_AMD_TARGETS "" CACHE STRING "AMD GPUs to compile for: all, none, native, or names (gfx942;gfx1100). Empty: what \
GPU_ARCHS, AMDGPU_TARGETS or PYTORCH_ROCM_ARCH says in the environment, else all")
set(FLASHWAVE_NVIDIA_TARGETS "" CACHE STRING "NVIDIA GPUs to compile for: all (the default), none, or names (sm_80;sm_90)")
set(FLASHWAVE_AMD_PARTS "" CACHE STRING "AMD kernels to compile, a regular expression on their lists' names (cdna_fwd_d64). Empty: all")
set(rocm_folders $ENV{ROCM_PATH} $ENV{HIP_PATH} /opt/rocm)

# The GPUs that the lists of kernels name.
set(known)         # every AMD GPU; code_of_NAME: whose machine code it runs
set(all)           # those that are compiled for
set(machine_code)  # compute capabilities of NVIDIA GPUs that machine code is made for,
set(ptx)           # and those whose PTX later GPUs run
foreach(folder IN LISTS kernel_folders)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/kernels.def)
  file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/kernels.def rows REGEX "^FW_AMD_GPU|^FW_NVIDIA_GPUS")
  foreach(row IN LISTS rows)
    if(row MATCHES "^FW_AMD_GPU\\((gfx[0-9a-f]+), (gfx[0-9a-f]+),")
      list(APPEND known ${CMAKE_MATCH_1})
      list(APPEND all ${CMAKE_MATCH_2})
      set(code_of_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    elseif(row MATCHES "^FW_NVIDIA_GPUS\\([A-Za-z0-9]+, ([0-9]+), ([A-Za-z0-9]+)\\)")
      list(APPEND machine_code ${CMAKE_MATCH_1})
      if(CMAKE_MATCH_2 STREQUAL "kAndLater")
        list(APPEND ptx ${CMAKE_MATCH_1})
      endif()
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES all)
list(SORT machine_code COMPARE NATURAL)
list(SORT ptx COMPARE NATURAL)

# ------------------------------------------------------------------------------------------------------------------ AMD
flashwave_chosen_targets(amd_targets FLASHWAVE_AMD_TARGETS FLASHWAVE_AMD_TARGETS GPU_ARCHS AMDGPU_TARGETS PYTORCH_ROCM_ARCH)
# The GPUs of this machine, as ROCm's tools or clang's own name them.
if("native" IN_LIST amd_targets)
  find_program(agents NO_CACHE NAMES rocm_agent_enumerator amdgpu-arch amdgpu-arch-22 HINTS ${rocm_folders}
               PATH_SUFFIXES bin llvm/bin)
  set(found)
  if(agents)
    execute_process(COMMAND ${agents} OUTPUT_VARIABLE found ERROR_QUIET)
    string(REGEX MATCHALL "gfx[0-9a-f]+" found "${found}")
    list(REMOVE_ITEM found gfx000)  # the CPU
    list(REMOVE_DUPLICATES found)
  endif()
  if(NOT found)
    message(FATAL_ERROR "${ORIGIN} says native, but no AMD GPU is found (rocm_agent_enumerator, amdgpu-arch). Name the GPUs, e.g. gfx942.")
  endif()
  list(REMOVE_ITEM amd_targets native)
  list(APPEND amd_targets ${found})
endif()
set(chosen)
foreach(name IN LISTS amd_targets)
  if(name STREQUAL "all")
    list(APPEND chosen ${all})
  elseif(name IN_LIST known)
    list(APPEND chosen ${code_of_${name}})
  elseif(NOT name STREQUAL "none")
    list(JOIN known " " known)
    message(FATAL_ERROR "${ORIGIN} names an unknown AMD GPU, ${name}. Known: ${known}; or all, none, native.")
  endif()
endforeach()
list(REMOVE_DUPLICATES chosen)

# A clang that makes code objects: it has the AMDGPU target, is 19 or newer, and finds lld. A compiler of ROCm that was named
# for the rest is taken for the kernels too.
set(FLASHWAVE_AMD_COMPILER "" CACHE FILEPATH "clang >= 19 that compiles for AMD GPUs (empty: searched)")
file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/amd_probe.hip
     "#if __clang_major__ < 19\n#error\n#endif\n__attribute__((global)) void probe() {}\n")
set(amd_flags -x hip --offload-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -mcode-object-version=5 -std=c++20 -O3
    -ffp-contract=fast -fuse-cuid=none)
function(find_amd_compiler result)
  set(tried)
  set(candidates ${FLASHWAVE_AMD_COMPILER})
  if(NOT candidates)
    get_filename_component(own ${CMAKE_CXX_COMPILER} NAME)
    if(own MATCHES "hipcc")  # a script around a clang: which one, hipconfig knows
      get_filename_component(folder ${CMAKE_CXX_COMPILER} DIRECTORY)
      find_program(hipconfig NO_CACHE NAMES hipconfig HINTS ${folder} ${rocm_folders} PATH_SUFFIXES bin)
      if(hipconfig)
        execute_process(COMMAND ${hipconfig} --hipclangpath OUTPUT_VARIABLE clang_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        list(APPEND candidates ${clang_folder}/clang++)
      endif()
      list(APPEND candidates ${CMAKE_CXX_COMPILER})
    elseif(own MATCHES "amdclang")
      list(APPEND candidates ${CMAKE_CXX_COMPILER})
    endif()
    foreach(name clang++-22 clang++-21 clang++-20 clang++-19)
      find_program(found_clang NO_CACHE NAMES ${name})
      list(APPEND candidates ${found_clang})
      unset(found_clang)
    endforeach()
    foreach(folder IN LISTS rocm_folders)
      list(APPEND candidates ${folder}/llvm/bin/clang++)
    endforeach()
    find_program(found_clang NO_CACHE NAMES clang++)
    list(APPEND candidates ${found_clang})
  endif()
  foreach(candidate IN LISTS candidates)
    if(EXISTS "${candidate}")
      execute_process(COMMAND ${candidate} ${amd_flags} --offload-arch=gfx950 ${CMAKE_BINARY_DIR}/CMakeFiles/amd_probe.hip
                              -o ${CMAKE_BINARY_DIR}/CMakeFiles/amd_probe.co
                      RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
      if(NOT missing)
        set(${result} ${candidate} PARENT_SCOPE)
        return()
      endif()
      list(APPEND tried ${candidate})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES tried)
  list(JOIN tried ", " tried)
  set(${result} "" PARENT_SCOPE)
  set(tried "${tried}" PARENT_SCOPE)
endfunction()

if(NOT chosen)
  flashwave_left_out(AMD none "none are chosen (${ORIGIN})")
else()
  find_amd_compiler(amd_compiler)
  if(amd_compiler)
    list(JOIN chosen " " chosen_text)
    message(STATUS "AMD kernels for ${chosen_text}, by ${amd_compiler}")
  else()
    set(reason "no clang >= 19 with the AMDGPU target and lld was found (Debian: clang-22 lld-22; ROCm: ROCM_PATH)")
    if(tried)
      string(APPEND reason "; tried ${tried}")
    endif()
    flashwave_left_out(AMD "${amd_targets}" "${reason}")
    set(chosen)
  endif()
endif()

# --------------------------------------------------------------------------------------------------------------- NVIDIA
flashwave_chosen_targets(nvidia_targets FLASHWAVE_NVIDIA_TARGETS FLASHWAVE_NVIDIA_TARGETS)
# What a GPU runs: machine code of its generation, and PTX of its own and all before.
set(needed)
foreach(name IN LISTS nvidia_targets)
  string(REGEX REPLACE "^(sm_)?([0-9]+)\\.?([0-9])(a?)$" "\\2\\3" number "${name}")
  if(name STREQUAL "all")
    foreach(known_number IN LISTS machine_code)
      list(APPEND needed sm_${known_number})
    endforeach()
    foreach(known_number IN LISTS ptx)
      list(APPEND needed compute_${known_number})
    endforeach()
  elseif(number MATCHES "^[0-9]+$" AND number GREATER_EQUAL 75 AND number LESS 200)
    math(EXPR generation "${number} / 10")
    foreach(known_number IN LISTS machine_code)
      math(EXPR known_generation "${known_number} / 10")
      if(known_generation EQUAL generation AND known_number LESS_EQUAL number)
        list(APPEND needed sm_${known_number})
      endif()
    endforeach()
    foreach(known_number IN LISTS ptx)
      if(known_number LESS_EQUAL number)
        list(APPEND needed compute_${known_number})
      endif()
    endforeach()
  elseif(NOT name STREQUAL "none")
    list(JOIN machine_code ", sm_" known)
    message(FATAL_ERROR "${ORIGIN} names an unknown NVIDIA GPU, ${name}. Known: sm_75 to sm_199 (with code for sm_${known}, and PTX); or all, none.")
  endif()
endforeach()
list(REMOVE_DUPLICATES needed)

# Finds nvcc, ptxas and clang; in MISSING, why they will not do.
function(find_nvidia_compilers missing)
  set(${missing} "" PARENT_SCOPE)
  file(GLOB pypi_nvcc ${PROJECT_SOURCE_DIR}/out/venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin)
  find_program(FLASHWAVE_NVCC NO_CACHE NAMES nvcc HINTS ${pypi_nvcc} DOC "nvcc >= 13 that compiles for NVIDIA GPUs")
  if(NOT FLASHWAVE_NVCC)
    set(${missing} "nvcc was not found (scripts/venv --cuda fetches it from PyPI, FLASHWAVE_NVCC names one)" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(nvcc_folder "${FLASHWAVE_NVCC}" DIRECTORY)
  find_program(FLASHWAVE_PTXAS NO_CACHE NAMES ptxas HINTS ${nvcc_folder} DOC "ptxas that comes with nvcc")
  find_program(FLASHWAVE_CUDA_CLANG NO_CACHE NAMES clang++-22 clang++-21 clang++-20 clang++-19
               DOC "clang >= 19 that compiles the kernels AMD and NVIDIA GPUs share")
  if(NOT FLASHWAVE_PTXAS OR NOT FLASHWAVE_CUDA_CLANG)
    set(${missing} "nvcc needs ptxas beside it and clang >= 19 (Debian: clang-22) for the kernels AMD GPUs share" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${FLASHWAVE_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
  string(REGEX MATCH "V([0-9]+)\\.([0-9.]+)" nvcc_version "${nvcc_version}")
  if(NOT CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(${missing} "${FLASHWAVE_NVCC} is older than nvcc 13 (scripts/venv --cuda fetches a newer one from PyPI)" PARENT_SCOPE)
    return()
  endif()
  # Some file systems and hosts refuse to run it, and nvcc needs a host compiler.
  file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cu "__global__ void probe() {}\n")
  execute_process(COMMAND ${FLASHWAVE_NVCC} -cubin -std=c++20 -gencode arch=compute_90a,code=sm_90a
                          ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cu -o ${CMAKE_BINARY_DIR}/CMakeFiles/nvidia_probe.cubin
                  RESULT_VARIABLE nvidia_missing OUTPUT_QUIET ERROR_QUIET)
  if(nvidia_missing)
    set(${missing} "${FLASHWAVE_NVCC} cannot compile an empty kernel; it needs a host compiler (Debian: g++)" PARENT_SCOPE)
  endif()
  foreach(name FLASHWAVE_NVCC FLASHWAVE_PTXAS FLASHWAVE_CUDA_CLANG nvcc_version)
    set(${name} ${${name}} PARENT_SCOPE)
  endforeach()
endfunction()

if(NOT needed)
  flashwave_left_out(NVIDIA none "none are chosen (${ORIGIN})")
else()
  find_nvidia_compilers(reason)
  if(NOT reason)
    list(JOIN nvidia_targets " " nvidia_text)
    message(STATUS "NVIDIA kernels for ${nvidia_text}, by ${FLASHWAVE_NVCC} (${nvcc_version})")
    set(nvidia_flags -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings -I${PROJECT_SOURCE_DIR})
    flashwave_cached_tool(make_cubin ${FLASHWAVE_NVCC} -cubin "cubin ${nvcc_version}")
    flashwave_cached_tool(make_ptx ${FLASHWAVE_NVCC} -ptx "ptx ${nvcc_version}")
    flashwave_cached_tool(assemble ${FLASHWAVE_PTXAS} ptxas "ptxas ${nvcc_version}")
  else()
    flashwave_left_out(NVIDIA "${nvidia_targets}" "${reason}")
    set(needed)
  endif()
endif()
# That of clang is of CUDA 12.0, the oldest driver that is supported; nvcc writes some pragmas that are of CUDA 12.3.
set(ptx_feature 80)
set(ptx_version 8.3)

# ------------------------------------------------------------------------------- the words that sources.cmake is written in
# Machine code or PTX of a source (the first column of a row) for a target, which FILE will hold.
function(add_code maker source target file)
  set_property(GLOBAL APPEND PROPERTY FLASHWAVE_${maker}_FILES ${file})
  set_property(GLOBAL APPEND PROPERTY FLASHWAVE_${maker}_WORDS ${source} ${target} ${file})
endfunction()

# Compiles kernels/FOLDER/FILE.hip for each chosen one of the ARCHITECTURES: as a whole (PARTS is empty), else once for each
# of the PARTS, which are sources of rows without "FOLDER_" (kernels/common/part.h). Further words are flags.
function(amd_code_objects folder file architectures parts)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file}.hip)
  if(NOT parts)
    set(parts ${file})
  endif()
  foreach(arch IN LISTS architectures)
    if(NOT arch IN_LIST chosen)
      continue()
    endif()
    foreach(part IN LISTS parts)
      if(FLASHWAVE_AMD_PARTS AND NOT "${folder}_${part}" MATCHES "${FLASHWAVE_AMD_PARTS}")
        set_property(GLOBAL APPEND PROPERTY FLASHWAVE_AMD_UNNAMED ${folder}_${part})
        continue()
      endif()
      set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${part}_${arch}.co)
      set(command ${amd_compiler} ${amd_flags} --offload-arch=${arch} -Wall -Wextra -Werror ${ARGN} -I${PROJECT_SOURCE_DIR}
          -DFW_PART_${folder}_${part}=1 ${source})
      add_custom_command(
        OUTPUT ${output}
        # The driver's -MD does nothing for device code, and ccache would not know of the file.
        COMMAND ${command} -E -o /dev/null -Xclang -dependency-file -Xclang ${output}.d -Xclang -MT -Xclang ${output}
        COMMAND ${FLASHWAVE_CCACHE} ${command} -c -o ${output}
        DEPENDS ${source} DEPFILE ${output}.d VERBATIM COMMENT "AMD kernels ${folder}/${part} for ${arch}")
      add_code(AMD ${folder}_${part} ${arch} ${output})
    endforeach()
  endforeach()
endfunction()

# kernels/FOLDER/FILE.cu for one GPU alone (sm_90a), by nvcc, once for each of the PARTS. ptxas warns where it serialises
# wgmma, and warnings are errors.
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
    add_code(NVIDIA ${folder}_${part} ${target} ${output})
  endforeach()
endfunction()

# Machine code of the targets by ptxas from PTX, and the PTX itself. That it assembles shows that its version may be named.
function(nvidia_assemble source virtual ptx_file)
  add_code(NVIDIA ${source} ${virtual} ${ptx_file})
  foreach(target IN LISTS ARGN)
    if(target IN_LIST needed)
      set(output ${CMAKE_CURRENT_BINARY_DIR}/${source}_${target})
      add_custom_command(OUTPUT ${output}
                         COMMAND ${CMAKE_COMMAND} -E env CCACHE_EXTRAFILES=${ptx_file} ${assemble} -arch=${target} -O3 -x cu
                                 -c ${ptx_file} -o ${output}
                         DEPENDS ${ptx_file} VERBATIM COMMENT "NVIDIA kernels ${source} for ${target}")
      add_code(NVIDIA ${source} ${target} ${output})
    endif()
  endforeach()
endfunction()

# kernels/FOLDER/FILE.cu: PTX of VIRTUAL (compute_80) by nvcc, machine code of the targets from it, for each of the PARTS.
function(nvidia_code_objects folder file virtual parts)
  if(NOT virtual IN_LIST needed)
    return()
  endif()
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file}.cu)
  foreach(part IN LISTS parts)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${part}_${virtual}.ptx)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${make_ptx} -arch=${virtual} ${nvidia_flags} -DFW_PART_${folder}_${part}=1 -MD -MF ${output}.d -MT ${output}
              -c ${source} -o ${output}
      # Drivers refuse PTX that says it is newer than they are, whatever is in it.
      COMMAND sed -i "s/^[.]version .*/.version ${ptx_version}/" ${output}
      DEPENDS ${source} DEPFILE ${output}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${part} for ${virtual}")
    nvidia_assemble(${folder}_${part} ${virtual} ${output} ${ARGN})
  endforeach()
endfunction()

# The same for kernels/FOLDER/FILE.hip, which AMD GPUs share: clang makes the PTX, without CUDA's headers.
function(nvidia_shared_code_objects folder file virtual)
  if(NOT virtual IN_LIST needed)
    return()
  endif()
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file}.hip)
  string(REPLACE compute_ sm_ real ${virtual})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${folder}_${file}_${virtual}.ptx)
  set(command ${FLASHWAVE_CUDA_CLANG} -x cuda --cuda-device-only --cuda-gpu-arch=${real} -nocudainc -nocudalib -std=c++20 -O3
      -Wall -Wextra -Werror -ffp-contract=fast -I${PROJECT_SOURCE_DIR} -Xclang -target-feature -Xclang +ptx${ptx_feature} ${source})
  add_custom_command(
    OUTPUT ${output}
    # As for AMD's: the driver's -MD does nothing for device code, and ccache would not know of the file.
    COMMAND ${command} -E -o /dev/null -Xclang -dependency-file -Xclang ${output}.d -Xclang -MT -Xclang ${output}
    COMMAND ${FLASHWAVE_CCACHE} ${command} -S -o ${output}
    DEPENDS ${source} DEPFILE ${output}.d VERBATIM COMMENT "NVIDIA kernels ${folder}/${file} for ${virtual}")
  nvidia_assemble(${folder}_${file} ${virtual} ${output} ${ARGN})
endfunction()

# Packed arithmetic does not issue beside matrix instructions of AMD GPUs, so the compiler is kept from making it up. An array
# that it cannot keep in registers must not take LDS that no configuration knows of: as scratch memory tests/codeobj finds it.
set(matrix -fno-slp-vectorize -mllvm -disable-promote-alloca-to-lds)

# ------------------------------------------------------------------------------------------------------------ compilation
foreach(folder IN LISTS kernel_folders)
  include(${CMAKE_CURRENT_SOURCE_DIR}/${folder}/sources.cmake)
endforeach()
get_property(made GLOBAL PROPERTY FLASHWAVE_AMD_FILES)
get_property(unnamed GLOBAL PROPERTY FLASHWAVE_AMD_UNNAMED)
if(unnamed)
  list(REMOVE_DUPLICATES unnamed)
  list(JOIN unnamed " " unnamed)
  if(NOT made)
    message(FATAL_ERROR "FLASHWAVE_AMD_PARTS names no AMD kernels. There are: ${unnamed}.")
  endif()
  set(FLASHWAVE_AMD_LEFT_OUT "of these GPUs' kernels, what FLASHWAVE_AMD_PARTS does not name" PARENT_SCOPE)
  message(STATUS "Left out: AMD kernels that FLASHWAVE_AMD_PARTS does not name: ${unnamed}.")
endif()
foreach(maker AMD NVIDIA)
  get_property(files GLOBAL PROPERTY FLASHWAVE_${maker}_FILES)
  set(FLASHWAVE_${maker}_ARCHIVE "" CACHE INTERNAL "of which another build folder may take it: FLASHWAVE_GPU_CODE_OF")
  if(files)
    get_property(words GLOBAL PROPERTY FLASHWAVE_${maker}_WORDS)
    string(TOLOWER ${maker} lower)
    set(archive ${PROJECT_BINARY_DIR}/${lower}_kernels.bin)
    set(FLASHWAVE_${maker}_ARCHIVE ${archive} CACHE INTERNAL "")
    add_custom_command(OUTPUT ${archive} COMMAND pack_code_objects ${archive} ${words}
                       DEPENDS pack_code_objects ${files} VERBATIM COMMENT "Packing the ${maker} kernels")
    add_custom_target(flashwave_${lower}_kernels DEPENDS ${archive})
    set(FLASHWAVE_${maker}_KERNELS 1 PARENT_SCOPE)
    set(FLASHWAVE_${maker}_CODE ${archive} PARENT_SCOPE)
  endif()
endforeach()
# A build folder may hold machine code of kernels that have other names now, or of GPUs that are no longer chosen.
file(GLOB stale ${CMAKE_CURRENT_BINARY_DIR}/*.co)
list(REMOVE_ITEM stale ${made})
if(stale)
  file(REMOVE ${stale})
endif()

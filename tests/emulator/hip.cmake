# Tests of the HIP surface and of flashwave-emu, on code objects that clang compiles when the tests are built.

function(add_code_object output source)  # then the options
  set(path ${CMAKE_CURRENT_BINARY_DIR}/${output})
  add_custom_command(OUTPUT ${path} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    COMMAND ${FLASHWAVE_HIP_COMPILER} -x hip --offload-device-only -nogpulib -nogpuinc -O2 -Wall -Werror ${ARGN}
      ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${path}
    COMMENT "Compiling ${output}" VERBATIM)
  set(code_objects ${code_objects} ${path} PARENT_SCOPE)
endfunction()
set(code_objects)
foreach(arch gfx942 gfx1100)
  add_code_object(hip_kernels.${arch}.co hip_kernels.hip --no-gpu-bundle-output --offload-arch=${arch} -g)
endforeach()
add_code_object(hip_kernels.bundle hip_kernels.hip --gpu-bundle-output --offload-arch=gfx942 --offload-arch=gfx1100)
add_code_object(hip_unknown.co hip_unknown.hip --no-gpu-bundle-output --offload-arch=gfx1100)
add_custom_target(emulator_hip_kernels DEPENDS ${code_objects})

add_executable(emulator_hip hip_environment.cpp hip_device_test.cpp hip_memory_test.cpp hip_module_test.cpp
  hip_launch_test.cpp)
target_link_libraries(emulator_hip PRIVATE flashwave_emu GTest::gtest_main)
target_include_directories(emulator_hip PRIVATE ${PROJECT_SOURCE_DIR}/emulator)
flashwave_test_paths(emulator_hip kCodeObjects ${CMAKE_CURRENT_BINARY_DIR})
add_dependencies(emulator_hip emulator_hip_kernels)
gtest_discover_tests(emulator_hip TEST_PREFIX emulator. PROPERTIES TIMEOUT 120)

find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME emulator.tool COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/hip_tool_test.py
    $<TARGET_FILE:flashwave-emu> ${CMAKE_CURRENT_BINARY_DIR})
endif()

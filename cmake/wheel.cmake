# What the Python package carries: flashwave/lib/libflashwave.so, one file that needs nothing but glibc, the header and the
# command line; libflashwave_torch.so, which needs what torch needs; and, where LLVM 22 is found, the emulator of AMD GPUs.
set(known_machine OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|aarch64|arm64")
  set(known_machine ON)
endif()
option(FLASHWAVE_OLD_GLIBC "Let the library run on a glibc much older than this system's (x86-64, aarch64)" ${known_machine})

set_target_properties(flashwave_core PROPERTIES EXCLUDE_FROM_ALL ON)  # it is for the unit tests
set_property(TARGET flashwave PROPERTY VERSION)  # no links in a wheel
set_property(TARGET flashwave PROPERTY SOVERSION)
set_property(TARGET flashwave PROPERTY INSTALL_RPATH)

# The command line as a library, which python/flashwave/_command.py calls: the code that starts an executable needs the
# glibc it was linked with, 2.34 or newer.
add_subdirectory(${PROJECT_SOURCE_DIR}/cli ${PROJECT_BINARY_DIR}/cli EXCLUDE_FROM_ALL)
add_library(flashwave_command MODULE ${PROJECT_SOURCE_DIR}/cli/main.cpp)
target_compile_definitions(flashwave_command PRIVATE main=flashwave_main)
target_link_libraries(flashwave_command PRIVATE flashwave_cli_parts)
target_link_options(flashwave_command PRIVATE LINKER:--exclude-libs,ALL)
set_target_properties(flashwave_command PROPERTIES CXX_VISIBILITY_PRESET default INSTALL_RPATH "$ORIGIN")

foreach(target flashwave flashwave_command)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc LINKER:--gc-sections)
  if(FLASHWAVE_OLD_GLIBC)
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/old_glibc.c)
    # Parts of libc since 2.34, and empty since; before, the functions are found there.
    target_link_options(${target} PRIVATE LINKER:--no-as-needed -l:libpthread.so.0 -l:libdl.so.2)
  endif()
endforeach()

# torch's C++ runtime, through which exceptions pass, is the shared one; of it nothing newer than torch itself asks for.
if(FLASHWAVE_OLD_GLIBC)
  target_sources(flashwave_torch PRIVATE ${CMAKE_CURRENT_LIST_DIR}/old_glibc_dl.c)
  target_link_options(flashwave_torch PRIVATE LINKER:--no-as-needed -l:libdl.so.2)
endif()

install(TARGETS flashwave flashwave_command flashwave_torch LIBRARY DESTINATION lib)
install(DIRECTORY include/flashwave DESTINATION include)
if(FLASHWAVE_LLVM)
  add_subdirectory(${PROJECT_SOURCE_DIR}/emulator ${PROJECT_BINARY_DIR}/emulator)
endif()

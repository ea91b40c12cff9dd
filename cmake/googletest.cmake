# GoogleTest: the installed one or, where another kind of machine is compiled for, its sources, which Debian's package has
# too. GTest_FOUND says whether there is one.
find_package(GTest QUIET)
if(NOT GTest_FOUND AND CMAKE_CROSSCOMPILING AND EXISTS /usr/src/googletest/CMakeLists.txt)
  set(BUILD_GMOCK OFF CACHE INTERNAL "")
  set(INSTALL_GTEST OFF CACHE INTERNAL "")
  add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  set_target_properties(gtest gtest_main PROPERTIES COMPILE_OPTIONS -w)
  foreach(target gtest gtest_main)
    get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
    set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${folders}")
  endforeach()
  set(GTest_FOUND TRUE)
endif()

# ccache, where it is installed, before every compiler: FLASHWAVE_CCACHE is what a command line begins with, empty without
# it. Paths inside the checkout do not count, so that another clone of it, and every build folder, finds what one compiled.
# What a file includes, the compiler says when it compiles it: to preprocess it first takes a tenth of the time.
find_program(ccache NO_CACHE NAMES ccache)
option(FLASHWAVE_USE_CCACHE "Compile through ccache where it is installed" ON)
set(FLASHWAVE_CCACHE)
if(ccache AND FLASHWAVE_USE_CCACHE)
  set(FLASHWAVE_CCACHE ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${ccache})
endif()
foreach(language C CXX)
  set(CMAKE_${language}_COMPILER_LAUNCHER ${FLASHWAVE_CCACHE})
endforeach()

# flashwave_cached_tool(RESULT PROGRAM ARGUMENT VERSION-TEXT): a command line that begins `PROGRAM ARGUMENT` and goes on with
# other arguments, `-c INPUT -o OUTPUT` among them, and that ccache remembers. ccache knows nvcc only where it is called to
# compile with -c; cmake/ccache/nvcc is what it takes for nvcc.
function(flashwave_cached_tool result program argument version)
  if(FLASHWAVE_CCACHE)
    list(POP_BACK FLASHWAVE_CCACHE ccache)
    set(${result} ${FLASHWAVE_CCACHE} CCACHE_COMPILERCHECK=string:${version} FLASHWAVE_TOOL=${program} FLASHWAVE_ARGUMENT=${argument}
        ${ccache} ${PROJECT_SOURCE_DIR}/cmake/ccache/nvcc PARENT_SCOPE)
  else()
    set(${result} ${CMAKE_COMMAND} -E env FLASHWAVE_TOOL=${program} FLASHWAVE_ARGUMENT=${argument}
        ${PROJECT_SOURCE_DIR}/cmake/ccache/nvcc PARENT_SCOPE)
  endif()
endfunction()

# The package file asks for what the library links: CUDA's toolkit only for a static library that was built with CUDA,
# MPI only where kolo was built with it.
#
# usage: cmake -D SOURCE=... -D SCRATCH=... -P package_config_test.cmake
cmake_minimum_required(VERSION 3.25)

# Stands for the module of that name, which the package file includes, and notes what is looked for.
file(WRITE ${SCRATCH}/modules/CMakeFindDependencyMacro.cmake "macro(find_dependency name)\n  list(APPEND found \${name})\nendmacro()\n")
file(WRITE ${SCRATCH}/kolo-targets.cmake "")
set(CMAKE_MODULE_PATH ${SCRATCH}/modules)
macro(check_required_components)
endmacro()

function(check type cuda mpi expected)
  set(KOLO_LIBRARY_TYPE ${type})
  set(KOLO_CUDA ${cuda})
  set(KOLO_MPI ${mpi})
  set(PACKAGE_INIT "")
  configure_file(${SOURCE}/runtime/types/kolo-config.cmake.in ${SCRATCH}/kolo-config.cmake @ONLY)
  set(found "")
  include(${SCRATCH}/kolo-config.cmake)
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "${type}, CUDA ${cuda}, MPI ${mpi}: looks for ${found} instead of ${expected}")
  endif()
endfunction()

check(STATIC_LIBRARY OFF ON "Threads;MPI;fmt")
check(STATIC_LIBRARY ON ON "Threads;MPI;fmt;CUDAToolkit")
check(SHARED_LIBRARY OFF ON "Threads;MPI")
check(SHARED_LIBRARY ON ON "Threads;MPI")
check(STATIC_LIBRARY OFF OFF "Threads;fmt")
check(SHARED_LIBRARY OFF OFF "Threads")

# kolo_add_test(NAME [SOURCES file...] [LIBS target...] [RANKS n...] [TIMEOUT s] [LABELS l...])
#
# Builds NAME from NAME.cc (and SOURCES). Without RANKS every case is a test of its own; with RANKS the program runs under
# mpirun once per world size, prints on rank 0 and passes if it passes on every rank.
function(kolo_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS;RANKS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_executable(${name} ${name}.cc ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE KOLO_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE kolo::kolo kolo_flags fmt::fmt GTest::gtest ${arg_LIBS})
  if(NOT arg_RANKS)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
    return()
  endif()
  target_sources(${name} PRIVATE mpi_main.cc)
  foreach(ranks IN LISTS arg_RANKS)
    kolo_add_mpirun_test(${name}_np${ranks} RANKS ${ranks} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS}
      COMMAND $<TARGET_FILE:${name}>)
  endforeach()
endfunction()

# kolo_add_mpirun_test(NAME RANKS n COMMAND program args... [TIMEOUT s] [LABELS l...]): one command line under mpirun.
function(kolo_add_mpirun_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;RANKS" "COMMAND;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_test(NAME ${name}
    COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --timeout ${arg_TIMEOUT} -np ${arg_RANKS} ${arg_COMMAND})
  math(EXPR ctest_timeout "${arg_TIMEOUT} + 10")
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ctest_timeout} LABELS "mpi;${arg_LABELS}" PROCESSORS 2
    SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]"
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

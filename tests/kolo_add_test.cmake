# How tests are registered, and in which builds they run: all in a plain build; in one with sanitizers those that are not
# RELEASE_ONLY, and under ThreadSanitizer those marked THREADS. MPI's libraries are not instrumented, so THREADS is for ranks
# as threads.

if("thread" IN_LIST KOLO_SANITIZE)
  set(kolo_sanitizer thread)
elseif(KOLO_SANITIZE)
  set(kolo_sanitizer address)
endif()

# What every test with the label mpi, which starts ranks under mpirun, finds in its environment. Open MPI leaks, in plug-ins
# that it unloads before anybody could tell whose leak it was; leaks of our own show where ranks are threads.
set(kolo_mpirun_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 GTEST_COLOR=no)

# Sets RESULT to whether this build runs a test that was registered with these arguments.
function(kolo_runs_test result)
  set(${result} ON PARENT_SCOPE)
  if(kolo_sanitizer AND "RELEASE_ONLY" IN_LIST ARGN)
    set(${result} OFF PARENT_SCOPE)
  elseif(kolo_sanitizer STREQUAL "thread" AND NOT "THREADS" IN_LIST ARGN)
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()

# kolo_parse_test(OPTIONS ONE_VALUE MANY_VALUES argument...): a test's arguments as arg_*, with a TIMEOUT of a minute if there is none.
# Returns from the function that calls it if this build does not run the test.
macro(kolo_parse_test options one_value many_values)
  cmake_parse_arguments(arg "RELEASE_ONLY;${options}" "TIMEOUT;${one_value}" "${many_values}" ${ARGN})
  kolo_runs_test(runs ${ARGN})
  if(NOT runs)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
endmacro()

# Sets RESULT to the paths of these files, in whatever room of tests/ they are.
function(kolo_find_sources result)
  set(found "")
  foreach(name IN LISTS ARGN)
    file(GLOB_RECURSE path ${CMAKE_CURRENT_SOURCE_DIR}/${name})
    list(APPEND found ${path})
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# kolo_add_test(NAME [SOURCES file...] [LIBS target...] [RANKS n...] [NODES list...] [TIMEOUT s] [LABELS l...] [THREADS] [RELEASE_ONLY])
#
# Builds NAME from NAME.cc (and SOURCES). Without RANKS and NODES every case is a test of its own; with RANKS the program runs under
# mpirun once per world size, with NODES once per placement on pretended nodes (2,2: two ranks on each of two); it prints on rank 0 and
# passes if it passes on every rank. A build that does not run the test has no target NAME either. A program that calls mpirun itself has the label mpi.
function(kolo_add_test name)
  kolo_parse_test("THREADS" "" "SOURCES;LIBS;RANKS;NODES;LABELS" ${ARGN})
  kolo_find_sources(sources ${name}.cc ${arg_SOURCES})
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE KOLO_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE kolo::kolo kolo_flags fmt::fmt GTest::gtest ${arg_LIBS})
  if(NOT arg_RANKS AND NOT arg_NODES)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 30 NO_PRETTY_VALUES
      TEST_LIST ${name}_cases)
    # gtest_discover_tests() cannot pass on properties that are lists; the cases get theirs once they are known.
    set(properties_file ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
    set(properties "TIMEOUT ${arg_TIMEOUT} LABELS \"${arg_LABELS}\"")
    if("mpi" IN_LIST arg_LABELS)
      string(APPEND properties " PROCESSORS 2 ENVIRONMENT \"${kolo_mpirun_environment}\"")
    endif()
    file(WRITE ${properties_file}
      "if(${name}_cases)\n  set_tests_properties(\${${name}_cases} PROPERTIES ${properties})\nendif()\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${properties_file})
    return()
  endif()
  target_sources(${name} PRIVATE runtime/session/mpi_main.cc)
  set(marks ${ARGN})
  list(FILTER marks INCLUDE REGEX "^(THREADS|RELEASE_ONLY)$")
  foreach(ranks IN LISTS arg_RANKS)
    kolo_add_mpirun_test(${name}_np${ranks} RANKS ${ranks} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS} ${marks}
      COMMAND $<TARGET_FILE:${name}>)
  endforeach()
  foreach(nodes IN LISTS arg_NODES)
    string(REPLACE "," "+" sum ${nodes})
    math(EXPR ranks ${sum})
    kolo_add_mpirun_test(${name}_nodes${sum} RANKS ${ranks} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS} ${marks}
      COMMAND $<TARGET_FILE:${name}>)
    set_property(TEST ${name}_nodes${sum} APPEND PROPERTY ENVIRONMENT KOLO_FAKE_NODES=${nodes})
  endforeach()
endfunction()

# kolo_add_mpirun_test(NAME RANKS n COMMAND program args... [TIMEOUT s] [LABELS l...] [THREADS] [RELEASE_ONLY]): one command
# line under mpirun. Counts as skipped if every case of the test program was; where one failed, mpirun's own words follow.
function(kolo_add_mpirun_test name)
  kolo_parse_test("THREADS" "RANKS" "COMMAND;LABELS" ${ARGN})
  add_test(NAME ${name}
    COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --timeout ${arg_TIMEOUT} -np ${arg_RANKS} ${arg_COMMAND})
  math(EXPR ctest_timeout "${arg_TIMEOUT} + 10")
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ctest_timeout} LABELS "mpi;${arg_LABELS}" PROCESSORS 2
    SKIP_REGULAR_EXPRESSION "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\][^\n]*\n)+$"
    ENVIRONMENT "${kolo_mpirun_environment}")
endfunction()

# kolo_add_shm_runs(NAME...): runs test programs whose ranks are threads once more, over shm, as NAME_shm; random ones shorter.
function(kolo_add_shm_runs)
  foreach(name IN LISTS ARGN)
    if(TARGET ${name})
      add_test(NAME ${name}_shm COMMAND ${name} --gtest_brief=1)
      set_tests_properties(${name}_shm PROPERTIES TIMEOUT 300 ENVIRONMENT "KOLO_TEST_BACKEND=shm;KOLO_TEST_SCALE=0.1")
    endif()
  endforeach()
endfunction()

# kolo_add_hosts_test(NAME SLOTS list COMMAND program args... [TIMEOUT s] [RELEASE_ONLY]): the same on several hosts, which are network
# namespaces. Counts as skipped where they cannot be made.
function(kolo_add_hosts_test name)
  kolo_parse_test("" "SLOTS" "COMMAND" ${ARGN})
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/bench/on_hosts.sh ${arg_SLOTS} ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS mpi PROCESSORS 2 SKIP_RETURN_CODE 77
    ENVIRONMENT "${kolo_mpirun_environment};MPIEXEC=${MPIEXEC_EXECUTABLE}")
endfunction()

# kolo_add_c_test(NAME [SOURCES file...] RANKS n... THREADS n...)
#
# Builds NAME from NAME.c (and SOURCES, C or C++) as strict C11 with every warning an error. Runs it under mpirun once per number of RANKS, and
# as `NAME threads n`, which plays ranks as threads, once per number of THREADS.
function(kolo_add_c_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;RANKS;THREADS" ${ARGN})
  kolo_find_sources(sources ${name}.c ${arg_SOURCES})
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Werror)
  target_link_libraries(${name} PRIVATE kolo::kolo fmt::fmt)
  foreach(ranks IN LISTS arg_RANKS)
    kolo_add_mpirun_test(${name}_np${ranks} RANKS ${ranks} COMMAND $<TARGET_FILE:${name}>)
  endforeach()
  foreach(ranks IN LISTS arg_THREADS)
    add_test(NAME ${name}_threads${ranks} COMMAND ${name} threads ${ranks})
    set_tests_properties(${name}_threads${ranks} PROPERTIES TIMEOUT 60)
  endforeach()
endfunction()

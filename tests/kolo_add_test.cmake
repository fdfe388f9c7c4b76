# How tests are registered. A test has one of four tiers as its label (quick, standard, all, nightly; see README.md), and runs in a
# plain build; in one with sanitizers unless it is RELEASE_ONLY, and if it starts ranks under mpirun only if it is SANITIZED: most of what those
# run ranks as threads run, too; under ThreadSanitizer if it is marked THREADS, for ranks as threads, as MPI's libraries are not instrumented.
#
# PROCESSORS counts half cores: ctest gets five times as many jobs as there are cores, since tests also wait. A case has two of them, one that mostly waits
# (WAITS) one, what starts ranks four, and what compares times (UNDISTURBED) all. COST makes ctest begin what starts ranks as early as it can: what
# waits, and then all else, fills what is left.

if("thread" IN_LIST KOLO_SANITIZE)
  set(kolo_sanitizer thread)
elseif(KOLO_SANITIZE)
  set(kolo_sanitizer address)
endif()

# What every test that starts ranks under mpirun finds in its environment. Open MPI leaks, in plug-ins that it unloads before
# a leak could be attributed; leaks of our own show where ranks are threads.
set(kolo_mpirun_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 GTEST_COLOR=no)
set(kolo_all_skipped "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\][^\n]*\n)+$")

# kolo_parse_test(OPTIONS ONE_VALUE MANY_VALUES argument...): a test's arguments as arg_*; PROCESSORS as arg_PROCESSORS.
# Returns from the function that calls it if this build does not run the test: what needs MPI takes KOLO_MPI.
macro(kolo_parse_test options one_value many_values)
  cmake_parse_arguments(arg "RELEASE_ONLY;SANITIZED;THREADS;WAITS;MPI;UNDISTURBED;${options}" "TIER;TIMEOUT;${one_value}" "ENVIRONMENT;${many_values}" ${ARGN})
  if(arg_MPI AND NOT KOLO_MPI)
    return()
  endif()
  if(kolo_sanitizer AND (arg_RELEASE_ONLY OR (arg_MPI AND NOT arg_SANITIZED) OR (kolo_sanitizer STREQUAL "thread" AND NOT arg_THREADS)))
    return()
  endif()
  if(NOT arg_TIER)
    set(arg_TIER standard)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  set(arg_COST 2)
  if(arg_UNDISTURBED)
    set(arg_PROCESSORS 1000)
  elseif(arg_WAITS)
    set(arg_PROCESSORS 1)
    set(arg_COST 3)
  elseif(arg_MPI)
    set(arg_PROCESSORS 4)
    set(arg_COST 4)
  else()
    set(arg_PROCESSORS 2)
  endif()
  if(arg_MPI)
    list(APPEND arg_ENVIRONMENT ${kolo_mpirun_environment})
  endif()
endmacro()

# kolo_add_program(NAME ROOMS folder... [SOURCES file...] [ALONE file...] [LIBS target...] [RANKS])
#
# Builds a test program from all *_test.cc of the rooms, or with RANKS, for mpirun, from their *_mpi_test.cc; and from SOURCES.
# It is built if this build runs a case of it. Five files at a time are compiled as one, but for those that have names in common with
# others (ALONE).
function(kolo_add_program name)
  cmake_parse_arguments(arg "RANKS" "" "ROOMS;SOURCES;ALONE;LIBS" ${ARGN})
  if(arg_RANKS AND NOT KOLO_MPI)
    return()
  endif()
  set(sources ${arg_SOURCES})
  foreach(room IN LISTS arg_ROOMS)
    file(GLOB found CONFIGURE_DEPENDS ${room}/*_test.cc)
    if(arg_RANKS)
      list(FILTER found INCLUDE REGEX "_mpi_test\\.cc$")
    else()
      list(FILTER found EXCLUDE REGEX "_(mpi|ranks)_test\\.cc$")
    endif()
    list(APPEND sources ${found})
  endforeach()
  if(arg_RANKS)
    list(APPEND sources support/mpi_main.cc)
  else()
    list(APPEND arg_LIBS GTest::gtest_main)
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${sources})
  kolo_compile_as_test(${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 5)
  foreach(pattern IN LISTS arg_ALONE)
    file(GLOB alone ${pattern})
    set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()

# kolo_add_cases(PROGRAM [FILTER gtest-filter] [TIER t] [TIMEOUT s] [ENVIRONMENT e...] [PREFIX p] [THREADS] [RELEASE_ONLY] [WAITS] [MPI])
#
# Every case that the filter selects is a test of its own, called after the prefix. MPI: cases that start mpirun themselves.
function(kolo_add_cases program)
  kolo_parse_test("" "FILTER;PREFIX" "" ${ARGN})
  set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL OFF)
  get_property(number TARGET ${program} PROPERTY CTEST_DISCOVERED_TEST_COUNTER)
  set(list ${program}_cases_${number})
  gtest_discover_tests(${program} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 30 NO_PRETTY_VALUES TEST_LIST ${list}
    TEST_PREFIX "${arg_PREFIX}" TEST_FILTER "${arg_FILTER}")
  # gtest_discover_tests() cannot pass on properties that are lists; the cases get theirs once they are known.
  set(properties_file ${CMAKE_CURRENT_BINARY_DIR}/${list}.cmake)
  set(properties "TIMEOUT ${arg_TIMEOUT} LABELS ${arg_TIER} PROCESSORS ${arg_PROCESSORS} COST ${arg_COST} ENVIRONMENT \"${arg_ENVIRONMENT}\"")
  file(WRITE ${properties_file} "if(${list})\n  set_tests_properties(\${${list}} PROPERTIES ${properties})\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${properties_file})
endfunction()

# kolo_add_ranks(PROGRAM [RANKS n...] [NODES list...] [NAME n] [FILTER gtest-filter] [TIER t] [TIMEOUT s] [RELEASE_ONLY] [WAITS])
#
# A test per world size, and per placement on pretended nodes (2,2: two ranks on each of two), which runs the program (its cases of
# the filter) under mpirun. It prints on rank 0, passes if it passes on every rank, and is skipped if every case was.
function(kolo_add_ranks program)
  kolo_parse_test("" "NAME;FILTER" "RANKS;NODES" MPI ${ARGN})
  if(NOT arg_NAME)
    set(arg_NAME ${program})
  endif()
  set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL OFF)
  set(command $<TARGET_FILE:${program}>)
  if(arg_FILTER)
    list(APPEND command --gtest_filter=${arg_FILTER})
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    kolo_add_mpirun(${arg_NAME}_np${ranks} ${ranks} ${command})
  endforeach()
  foreach(nodes IN LISTS arg_NODES)
    string(REPLACE "," "+" sum ${nodes})
    math(EXPR ranks ${sum})
    kolo_add_mpirun(${arg_NAME}_nodes${sum} ${ranks} ${command})
    set_property(TEST ${arg_NAME}_nodes${sum} APPEND PROPERTY ENVIRONMENT KOLO_FAKE_NODES=${nodes})
  endforeach()
endfunction()

# kolo_add_launched(PROGRAM RANKS n... [NAME n] [FILTER gtest-filter] [TIER t] [TIMEOUT s] [RELEASE_ONLY]): the same under support/launch, where the
# ranks meet through a store.
function(kolo_add_launched program)
  kolo_parse_test("" "NAME;FILTER" "RANKS" ${ARGN})
  if(NOT arg_NAME)
    set(arg_NAME ${program})
  endif()
  set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL OFF)
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME ${arg_NAME}_launch${ranks} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/support/launch -n ${ranks} $<TARGET_FILE:${program}>
      --gtest_filter=${arg_FILTER})
    set_tests_properties(${arg_NAME}_launch${ranks} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS ${arg_TIER} PROCESSORS 4 COST 4
      SKIP_REGULAR_EXPRESSION "${kolo_all_skipped}" ENVIRONMENT "GTEST_COLOR=no;${arg_ENVIRONMENT}")
  endforeach()
endfunction()

# kolo_add_mpirun(NAME N COMMAND...): one command line under mpirun, with the properties in arg_*.
function(kolo_add_mpirun name ranks)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --timeout ${arg_TIMEOUT} -np ${ranks} ${ARGN})
  math(EXPR timeout "${arg_TIMEOUT} + 10")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS ${arg_TIER} PROCESSORS ${arg_PROCESSORS} COST ${arg_COST}
    SKIP_REGULAR_EXPRESSION "${kolo_all_skipped}" ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()

# kolo_add_hosts(PROGRAM SLOTS list [NAME n] [FILTER gtest-filter] [TIMEOUT s] [WAITS]): the same on several hosts, which are network namespaces. Skipped where
# they cannot be made.
function(kolo_add_hosts program)
  kolo_parse_test("" "NAME;SLOTS;FILTER" "" MPI TIER all ${ARGN})
  if(NOT arg_NAME)
    set(arg_NAME ${program})
  endif()
  set(waits)
  if(arg_WAITS)
    set(waits WAITS)
  endif()
  string(REPLACE "," "+" sum ${arg_SLOTS})
  kolo_add_command(${arg_NAME}_hosts${sum} ${PROJECT_SOURCE_DIR}/bench/on_hosts.sh ${arg_SLOTS} $<TARGET_FILE:${program}>
    --gtest_filter=${arg_FILTER} MPI TIER all TIMEOUT ${arg_TIMEOUT} ENVIRONMENT MPIEXEC=${MPIEXEC_EXECUTABLE} ${waits})
endfunction()

# kolo_add_command(NAME COMMAND... [TIER t] [TIMEOUT s] [ENVIRONMENT e...] [RELEASE_ONLY] [WAITS] [MPI]): a test that is a command line; exit code 77
# or gtest's words say that it was skipped.
function(kolo_add_command name)
  kolo_parse_test("" "" "" ${ARGN})
  add_test(NAME ${name} COMMAND ${arg_UNPARSED_ARGUMENTS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS ${arg_TIER} PROCESSORS ${arg_PROCESSORS} COST ${arg_COST} SKIP_RETURN_CODE 77
    SKIP_REGULAR_EXPRESSION "${kolo_all_skipped}" ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()

# kolo_add_parts(NAME file...): what several test programs have in common, compiled once.
function(kolo_add_parts name)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  kolo_compile_as_test(${name})
endfunction()

# kolo_compile_as_test(TARGET): the flags of all tests' sources, and a precompiled header of what they all include.
function(kolo_compile_as_test name)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE KOLO_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # Compiling tests takes longer than running them, most of all with AddressSanitizer; undefined behaviour is looked for in what they test.
  if(kolo_sanitizer STREQUAL "address")
    target_compile_options(${name} PRIVATE -O0 -fno-sanitize=undefined)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_link_libraries(${name} PRIVATE kolo::kolo kolo_flags fmt::fmt GTest::gtest)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # for ccache
  if(NOT name STREQUAL "test_headers")
    target_precompile_headers(${name} REUSE_FROM test_headers)
  endif()
endfunction()

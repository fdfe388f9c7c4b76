# Tests of apps/: the data-parallel glue with ranks as threads; kolo-train by its command line, under mpirun where ranks matter.
if(NOT TARGET kolo_apps)
  return()
endif()
kolo_add_test(data_parallel_test LIBS kolo_apps)
kolo_runs_test(runs RELEASE_ONLY)
if(runs)  # a few tries; by hand it takes fifty
  add_test(NAME kill_resume_test
    COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/apps/kill_resume_test.sh $<TARGET_FILE:kolo-train> ${MPIEXEC_EXECUTABLE} 3 0)
  set_tests_properties(kill_resume_test PROPERTIES TIMEOUT 120 LABELS mpi PROCESSORS 2)
endif()
set(train_same_test_marks RELEASE_ONLY)  # trains for a minute under sanitizers, where train_golden_test runs the same code
foreach(name train_options_test train_log_test train_errors_test train_golden_test train_same_test
             train_resume_test train_recipe_test train_tokens_test train_batch_norm_test)
  kolo_add_test(${name} LIBS kolo_apps nlohmann_json::nlohmann_json LABELS mpi TIMEOUT 120 ${${name}_marks})
  if(TARGET ${name})
    add_dependencies(${name} kolo-train)
    target_compile_definitions(${name} PRIVATE
      KOLO_TRAIN="$<TARGET_FILE:kolo-train>" KOLO_MPIRUN="${MPIEXEC_EXECUTABLE}")
  endif()
endforeach()

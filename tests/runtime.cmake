# Tests of runtime/: pure parts, then ranks as threads, then processes.
kolo_add_test(negotiation_test TIMEOUT 120)
kolo_add_test(session_test THREADS)
kolo_add_test(random_session_test THREADS TIMEOUT 300)
set(property_sources property_program.cc property_draw.cc property_model.cc property_together.cc property_submission.cc property_player.cc)
kolo_add_test(property_test THREADS TIMEOUT 300 SOURCES ${property_sources})
kolo_add_test(property_planted_test TIMEOUT 300 SOURCES ${property_sources} RELEASE_ONLY)
kolo_add_test(arguments_test)
kolo_add_test(rank_set_test)
kolo_add_test(wire_test)
kolo_add_test(plan_test)
kolo_add_test(ready_table_test)
kolo_add_test(mismatch_test)
kolo_add_test(config_test)
kolo_add_test(dlpack_test)
kolo_add_test(pending_queue_test THREADS)
kolo_add_test(session_failure_test THREADS TIMEOUT 120)
kolo_add_test(groups_test THREADS)
kolo_add_test(groups_mpi_test RANKS 1 2 3 4 NODES 2,2 3,1)
kolo_add_test(collectives_test THREADS)
kolo_add_test(collectives_mpi_test RANKS 1 2 3 4 NODES 2,2 3,1)
kolo_add_test(features_test THREADS TIMEOUT 120)
kolo_add_test(features_mpi_test RANKS 1 2 3 4 NODES 2,2 3,1 TIMEOUT 120)
kolo_add_test(placement_mpi_test RANKS 1 TIMEOUT 120 RELEASE_ONLY)
if(TARGET placement_mpi_test)  # all but what takes long: many segments are nodes_backend_test's and mpi_backend_test's business
  foreach(slots 2,2 3,1)
    string(REPLACE "," "+" sum ${slots})
    kolo_add_mpirun_test(placement_mpi_test_nodes${sum} RANKS 4 TIMEOUT 120
      COMMAND $<TARGET_FILE:placement_mpi_test> --gtest_filter=-*LargerThan*:*BlocksOfSeveral*)
    set_property(TEST placement_mpi_test_nodes${sum} APPEND PROPERTY ENVIRONMENT KOLO_FAKE_NODES=${slots})
  endforeach()
endif()
kolo_add_test(hard_cases_test THREADS TIMEOUT 120)
kolo_add_test(large_test RANKS 2 TIMEOUT 180 RELEASE_ONLY)  # takes 4.3 GB
kolo_add_test(negotiator_test)
kolo_add_test(executor_test)
kolo_add_test(session_results_test THREADS TIMEOUT 120)
kolo_add_test(node_links_test THREADS TIMEOUT 120)
kolo_add_test(stall_test THREADS TIMEOUT 100)
kolo_add_test(session_mpi_test RANKS 1 2 3 4)
kolo_add_c_test(c_api_test SOURCES c_api_collectives.c c_api_errors.c c_api_from_cpp.cc RANKS 1 2 3 4 THREADS 1 2 3 4)

# Two hosts: real namespaces, real TCP between them.
foreach(slots 2,2 3,1)
  string(REPLACE "," "+" sum ${slots})
  foreach(name collectives_mpi_test features_mpi_test groups_mpi_test)
    if(TARGET ${name})
      kolo_add_hosts_test(${name}_hosts${sum} SLOTS ${slots} COMMAND $<TARGET_FILE:${name}> TIMEOUT 120 RELEASE_ONLY)
    endif()
  endforeach()
  kolo_add_hosts_test(placement_mpi_test_hosts${sum} SLOTS ${slots} TIMEOUT 90 RELEASE_ONLY
    COMMAND $<TARGET_FILE:placement_mpi_test> --gtest_filter=Placement.*:*EveryOp*:*AbsentRanks*:*RandomSchedules*)
endforeach()
kolo_runs_test(runs RELEASE_ONLY)
if(runs)
  add_test(NAME hosts_leave_nothing COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/hosts_test.sh ${PROJECT_SOURCE_DIR}/bench/on_hosts.sh)
  set_tests_properties(hosts_leave_nothing PROPERTIES TIMEOUT 60 LABELS mpi PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()

# Whole jobs: thread levels of a host program, launchers, settings that differ, idle, frozen, late and killed
# ranks, exit().
kolo_runs_test(kolo_runs_jobs)
if(kolo_runs_jobs)
  add_executable(session_job session_job.cc)
  target_link_libraries(session_job PRIVATE kolo::kolo kolo_flags)
  foreach(case host_multiple host_serialized host_funneled host_single launcher_of_another_mpi no_launcher sessions_in_a_row idle idle_nodes
      frozen_rank frozen_after_step frozen_after_submission late_rank late_rank_host killed_rank
      exit_stack exit_static exit_later at_exit_static at_exit_later different_settings different_nodes
      different_backends local_backend wrong_fake_nodes garbage_setting)
    add_test(NAME session_job_${case}
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/session_jobs_test.sh ${case} $<TARGET_FILE:session_job> ${MPIEXEC_EXECUTABLE})
    set_tests_properties(session_job_${case} PROPERTIES TIMEOUT 70 LABELS mpi PROCESSORS 2 ENVIRONMENT "${kolo_mpirun_environment}")
  endforeach()
endif()

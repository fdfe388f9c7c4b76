# What is read rather than run: the includes of every source file, and the hops that README lists.
kolo_runs_test(runs RELEASE_ONLY)
if(runs)
  foreach(script layering_test layering_hops layering_selftest)
    add_test(NAME ${script} COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/${script}.sh)
  endforeach()
  set_tests_properties(layering_hops PROPERTIES SKIP_RETURN_CODE 77)
  set_tests_properties(layering_test layering_hops layering_selftest PROPERTIES TIMEOUT 60 LABELS layering)
endif()

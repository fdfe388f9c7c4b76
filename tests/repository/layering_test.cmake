# What is read rather than run: which room opens which, in sources and object files, and the hops of a gradient.
kolo_runs_test(runs RELEASE_ONLY)
if(runs)
  add_test(NAME layering_test COMMAND ${CMAKE_CURRENT_LIST_DIR}/layering_test.py ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  add_test(NAME layering_hops COMMAND ${CMAKE_CURRENT_LIST_DIR}/layering_hops.py)
  add_test(NAME layering_selftest COMMAND ${CMAKE_CURRENT_LIST_DIR}/layering_selftest.sh)
  set_tests_properties(layering_test layering_hops layering_selftest PROPERTIES TIMEOUT 60 LABELS layering)
endif()

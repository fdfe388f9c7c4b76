# Whether other projects can use kolo: apps/embed is built against an installed static library, kolo's sources, and an
# installed shared library; its programs run alone and on several ranks.
kolo_runs_test(runs RELEASE_ONLY)
if(runs)
  foreach(mode installed sources)
    add_test(NAME package_${mode}
      COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/package_test.sh ${mode} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
        ${CMAKE_CURRENT_BINARY_DIR}/package_${mode})
    set_tests_properties(package_${mode} PROPERTIES
      TIMEOUT 600 LABELS package PROCESSORS 2 ENVIRONMENT "${kolo_mpirun_environment}")
  endforeach()
endif()

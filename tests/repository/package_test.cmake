# Whether other projects can use kolo: apps/embed is built against an installed static library, kolo's sources, and an
# installed shared library; its programs run alone and on several ranks. And what the package file looks for.
kolo_runs_test(runs RELEASE_ONLY)
if(runs)
  add_test(NAME package_config
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D SCRATCH=${CMAKE_CURRENT_BINARY_DIR}/package_config
      -P ${CMAKE_CURRENT_LIST_DIR}/package_config_test.cmake)
  set_tests_properties(package_config PROPERTIES TIMEOUT 30 LABELS package)
  foreach(mode installed sources)
    add_test(NAME package_${mode}
      COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/package_test.sh ${mode} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
        ${CMAKE_CURRENT_BINARY_DIR}/package_${mode})
    set_tests_properties(package_${mode} PROPERTIES
      TIMEOUT 600 LABELS package PROCESSORS 2 ENVIRONMENT "${kolo_mpirun_environment}")
  endforeach()
endif()

# Tests of models/: what is trained, and what it is trained on.
find_package(ZLIB REQUIRED)
find_package(nlohmann_json REQUIRED)
foreach(name random_test gemm_test cnn_test layers_test llama_test mlp_test optimizer_test sample_test schedule_test
             digits_dir_test rendered_test sampler_test token_stream_test augment_test
             safetensors_test safetensors_fuzz_test checkpoint_test checkpoint_store_test kernels_test pretrained_test)
  kolo_add_test(${name} LIBS kolo_models)
endforeach()
kolo_add_test(idx_test LIBS kolo_models ZLIB::ZLIB)  # writes gzipped files itself
kolo_add_test(golden_mlp_test LIBS kolo_models nlohmann_json::nlohmann_json)
kolo_add_test(prefetcher_test LIBS kolo_models THREADS)
kolo_add_test(golden_llama_test LIBS kolo_models)
kolo_add_test(golden_cnn_test LIBS kolo_models nlohmann_json::nlohmann_json)
foreach(name cnn_test golden_cnn_test)  # oneDNN has other convolutions for processors without AVX-512
  if(TARGET ${name})
    add_test(NAME ${name}_avx2 COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}_avx2 PROPERTIES TIMEOUT 60 ENVIRONMENT ONEDNN_MAX_CPU_ISA=AVX2
      SKIP_REGULAR_EXPRESSION "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\][^\n]*\n)+$")
  endif()
endforeach()

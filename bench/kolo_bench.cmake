# kolo-bench, and its parts as a library for its tests.
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(nlohmann_json REQUIRED)

configure_file(kolo_bench/version.h.in ${PROJECT_BINARY_DIR}/generated/bench/kolo_bench/version.h @ONLY)
set(parts baseline bucket_list bucket_lists_table buckets card_place checker collective copies direct files flag_values flags host_place idle json latency options
  overlap pack plot ranks raw_mpi raw_nccl result rival run sizes stage storage sweep table_csv table_gpus table_nccl table_osu table_pack through_session timing values watch work)
list(TRANSFORM parts PREPEND kolo_bench/)
list(TRANSFORM parts APPEND .cc)
add_library(kolo_bench STATIC ${parts})
target_include_directories(kolo_bench PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(kolo_bench
  PUBLIC kolo::kolo fmt::fmt PRIVATE Boost::program_options nlohmann_json::nlohmann_json kolo_flags)
set_source_files_properties(kolo_bench/options.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # has a name in common with values.h

# What counts MPI calls belongs to the program alone: it takes the place of MPI's own functions.
add_executable(kolo-bench kolo_bench/main.cc kolo_bench/mpi_calls.cc)
target_link_libraries(kolo-bench PRIVATE kolo_bench kolo_flags)

# kolo-bench, and its parts as a library for its tests.
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(nlohmann_json REQUIRED)

configure_file(kolo_bench/version.h.in ${PROJECT_BINARY_DIR}/generated/bench/kolo_bench/version.h @ONLY)
add_library(kolo_bench STATIC)
foreach(room kolo_bench/measure kolo_bench/report)
  kolo_add_room(kolo_bench ${room})
endforeach()
kolo_add_room(kolo_bench kolo_bench EXCEPT main.cc ALONE options.cc)
kolo_add_room(kolo_bench kolo_bench/peers EXCEPT mpi_calls.cc)
target_include_directories(kolo_bench PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(kolo_bench
  PUBLIC kolo::kolo fmt::fmt PRIVATE Boost::program_options nlohmann_json::nlohmann_json kolo_flags)

# What counts MPI calls belongs to the program alone: it takes the place of MPI's own functions.
add_executable(kolo-bench kolo_bench/main.cc kolo_bench/peers/mpi_calls.cc)
target_link_libraries(kolo-bench PRIVATE kolo_bench kolo_flags)

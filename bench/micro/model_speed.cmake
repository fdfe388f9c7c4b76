# model-speed: passes of the models per second, against the rate of matrix products.
find_package(Boost REQUIRED COMPONENTS program_options)
add_executable(model-speed micro/model_speed.cc)
target_include_directories(model-speed PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(model-speed PRIVATE kolo_models kolo::kolo Boost::program_options fmt::fmt kolo_flags)

// The random programs of the whole runtime, half of whose operations have their tensors on GPUs: fakes, over the fake
// NCCL and staged. Ranks are threads. Replay one with KOLO_TEST_SEED=<seed>.

#include "tests/ops/gpu/gpu_ranks.h"
#include "tests/runtime/property/property_player.h"

namespace kolo {
namespace {

constexpr int parts = 4;

class GpuProperty : public ::testing::TestWithParam<std::tuple<std::string, int>> {};
INSTANTIATE_TEST_SUITE_P(Over, GpuProperty,
                         ::testing::Combine(::testing::Values("nccl", "staged"), ::testing::Range(0, parts)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST_P(GpuProperty, EveryProgramDoesWhatTheModelDoes) {
  const auto& [backend, part] = GetParam();
  testing::play_programs(200, part, parts, [&](const testing::PropertyProgram& program, Config& config) {
    testing::set_fake_nccl({.in_progress = 80, .seed = program.seed});
    testing::clear_nccl_log();
    config.gpu_backend = backend;
    config.gpu_pack_bytes = 1 << (12 + program.seed % 9);
    return testing::Prepare();
  });
}

}  // namespace
}  // namespace kolo

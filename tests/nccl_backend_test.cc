// What any backend must do, over NCCL and GPUs that are stand-ins: whole collectives, with the answers "in progress"
// and the delays of streams at random. The same on real GPUs is device_backend_mpi_test.

#include "ops/nccl_backend.h"

#include "ops/local_backend.h"
#include "tests/backend_conformance.h"
#include "tests/nccl_harness.h"
#include "tests/stand_in_card.h"
#include "tests/stand_in_nccl.h"

namespace kolo {
namespace {

using testing::NcclHarness;

/// Tensors from 4 KiB on are large; staging holds a few thousand elements.
constexpr NcclTuning tiny{16 << 10, 4 << 10};
constexpr NcclTuning wide{64 << 10, 4 << 10, true};
constexpr NcclTuning enrolled{1 << 20, 64 << 10, false, true};

HarnessFactory factory(std::string name, int ranks, const NcclTuning& tuning, int in_progress, int schedules,
                       bool in_memory = false) {
  return {std::move(name),
          [=] {
            testing::set_stand_in_nccl({.in_progress = in_progress, .seed = static_cast<std::uint64_t>(ranks)});
            return std::make_unique<NcclHarness>(ranks, tuning, in_memory);
          },
          schedules};
}

std::vector<HarnessFactory> harnesses() {
  const int schedules = sanitized ? 2 : 4;
  std::vector<HarnessFactory> factories{factory("tiny3ranks", 3, tiny, 100, schedules)};
  if (!sanitized) {
    factories.push_back(factory("default1rank", 1, {}, 0, schedules));
    factories.push_back(factory("default2ranks", 2, {}, 100, schedules));
    factories.push_back(factory("wide2ranks", 2, wide, 50, schedules));
    factories.push_back(factory("enrolled3ranks", 3, enrolled, 50, schedules, true));
  }
  return factories;
}
INSTANTIATE_TEST_SUITE_P(Nccl, BackendConformance, ::testing::ValuesIn(harnesses()), name_of_harness);

}  // namespace
}  // namespace kolo

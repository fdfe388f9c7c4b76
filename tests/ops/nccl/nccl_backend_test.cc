// What any backend must do, over a fake NCCL and fake GPUs: whole collectives, with the answers "in progress"
// and the delays of streams at random. The same on real GPUs is device_backend_mpi_test.

#include "ops/nccl/backend.h"

#include "ops/local/backend.h"
#include "tests/ops/backend_conformance.h"
#include "tests/ops/nccl/nccl_harness.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"

namespace kolo {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExactConformance);  // NCCL adds in an order that depends on the place

namespace {

using testing::NcclHarness;

/// Tensors from 4 KiB on are large, buckets up to 8 KiB urgent; staging holds a few thousand elements.
constexpr NcclTuning tiny{16 << 10, 4 << 10, false, false, false, 8 << 10};
constexpr NcclTuning wide{64 << 10, 4 << 10, true, false, false, 8 << 10};
constexpr NcclTuning blocking{256 << 10, 64 << 10, false, false, false, 8 << 10, true};
constexpr NcclTuning registered{1 << 20, 64 << 10, false, true, false, 8 << 10};

HarnessFactory factory(std::string name, int ranks, const NcclTuning& tuning, int in_progress, int schedules,
                       int shrinks, bool in_memory = false) {
  return {std::move(name),
          [=] {
            testing::set_fake_nccl({.in_progress = in_progress, .seed = static_cast<std::uint64_t>(ranks)});
            return std::make_unique<NcclHarness>(ranks, tuning, in_memory);
          },
          schedules, shrinks};
}

constexpr int schedules = 2;

std::vector<HarnessFactory> harnesses() {
  std::vector<HarnessFactory> factories{factory("tiny3ranks", 3, tiny, 100, schedules, 20)};
  if (!sanitized) factories.push_back(factory("default2ranks", 2, {}, 100, schedules, 4));
  return factories;
}
INSTANTIATE_TEST_SUITE_P(Nccl, BackendConformance, ::testing::ValuesIn(harnesses()), name_of_harness);

/// Settings that change few of the calls, and a world of one.
class NcclSettings : public BackendConformance {};
INSTANTIATE_TEST_SUITE_P(With, NcclSettings,
                         ::testing::Values(factory("default1rank", 1, {}, 0, schedules, 20),
                                           factory("blocking2ranks", 2, blocking, 0, 1, 20),
                                           factory("wide2ranks", 2, wide, 50, schedules, 10),
                                           factory("registered3ranks", 3, registered, 50, schedules, 10, true)),
                         name_of_harness);

TEST_P(NcclSettings, EveryOpAndType) {
  std::vector<Call> calls;
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter}) {
    for (const DType dtype : all_types) {
      for (const ReduceOp op : all_reduce_ops) {
        if (!reducible(op, dtype)) continue;
        Signature signature = signature_of(kind, dtype, op, static_cast<int>(calls.size()) % ranks());
        if (scalable(op, dtype) && calls.size() % 2 == 0) signature.prescale = 0.5, signature.postscale = 3;
        calls.push_back({signature, {1001, 0, 3, 5'003}, calls.size() % 3 == 0, calls.size()});
      }
    }
  }
  run_calls(calls);
}

TEST_P(NcclSettings, RandomSchedules) {
  for (std::uint64_t seed = 101; seed <= 102; ++seed) run_schedule(random_calls(seed, ranks()), seed);
}

}  // namespace
}  // namespace kolo

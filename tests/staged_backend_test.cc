// Device tensors through pinned memory over host backends: what any backend must do, on stand-ins for cards.

#include "ops/staged_backend.h"

#include <thread>

#include "ops/local_backend.h"
#include "tests/backend_conformance.h"
#include "tests/late_stream.h"
#include "tests/stand_in_card.h"

namespace kolo {
namespace {

class StagedHarness final : public Harness {
 public:
  StagedHarness(int ranks, const StagedTuning& tuning) {
    auto hosts = local_backends(ranks, {});
    GroupInfo world;
    for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
    for (world.rank = 0; world.rank < ranks; ++world.rank) {
      BackendList mine;
      mine.push_back(std::move(hosts[static_cast<std::size_t>(world.rank)]));
      backends_.push_back(staged_backend(cuda_card(0), std::move(mine), world, tuning));  // more ranks than cards
    }
  }
  int ranks() const override { return static_cast<int>(backends_.size()); }
  Device device(int /*rank*/) const override { return {DeviceKind::cuda, 0}; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks(); ++rank)
      threads.emplace_back([&, rank] { body(rank, *backends_[static_cast<std::size_t>(rank)]); });
  }

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
};

HarnessFactory factory(std::string name, int ranks, const StagedTuning& tuning, int schedules, int shrinks) {
  return {std::move(name), [=] { return std::make_unique<StagedHarness>(ranks, tuning); }, schedules, shrinks};
}
constexpr StagedTuning tiny{4096, 2};

std::vector<HarnessFactory> harnesses() {
  if (sanitized) return {factory("tiny3ranks", 3, tiny, 2, 10)};
  return {factory("default1rank", 1, {}, 4, 20), factory("default2ranks", 2, {}, 3, 4),
          factory("tiny3ranks", 3, tiny, 2, 20)};
}
INSTANTIATE_TEST_SUITE_P(Staged, BackendConformance, ::testing::ValuesIn(harnesses()), name_of_harness);
INSTANTIATE_TEST_SUITE_P(Staged, ExactConformance, ::testing::ValuesIn(harnesses()), name_of_harness);

TEST(StagedStreams, EveryOneThatWritesABucketIsWaitedFor) {
  StagedHarness harness(2, tiny);
  harness.run([&](int rank, Backend& backend) {
    testing::expect_late_stream_is_waited_for(backend, harness.device(rank), all_reduce_of(DType::f32, ReduceOp::sum),
                                              3000, 2);
  });
}

TEST(StagedTuning, StaysWithinTheMemoryItIsGiven) {
  EXPECT_EQ(staged_within(64 << 20).chunk_bytes, 4 << 20);
  EXPECT_EQ(staged_within(1 << 20).chunk_bytes, 256 << 10);
  EXPECT_EQ(staged_within(1).chunk_bytes, 4096);
}

}  // namespace
}  // namespace kolo

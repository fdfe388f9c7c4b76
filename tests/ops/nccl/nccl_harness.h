#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "ops/local/backend.h"
#include "ops/nccl/backend.h"
#include "tests/ops/backend_conformance.h"

namespace kolo::testing {

/// Ranks as threads, each with a fake GPU, over the fake NCCL.
class NcclHarness final : public Harness {
 public:
  NcclHarness(int ranks, const NcclTuning& tuning, bool in_memory = false) : in_memory_(in_memory) {
    auto hosts = local_backends(ranks, {});
    GroupInfo world;
    world.name = "world";
    for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
    for (world.rank = 0; world.rank < ranks; ++world.rank) {
      const auto r = static_cast<std::size_t>(world.rank);
      shared_.push_back(std::make_shared<NcclRank>(*nccl_table(), cuda_gpu(world.rank), tuning));
      backends_.push_back(nccl_backend(shared_[r], world, std::move(hosts[r])));
    }
  }
  /// Ending a communicator is collective.
  ~NcclHarness() override { end(); }
  void end() {
    std::vector<std::jthread> threads;
    for (auto& backend : backends_) threads.emplace_back([&backend] { backend.reset(); });
  }

  int ranks() const override { return static_cast<int>(backends_.size()); }
  Device device(int rank) const override { return {DeviceKind::cuda, rank}; }
  bool exact() const override { return false; }
  bool uses_memory() const override { return in_memory_; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks(); ++rank) threads.emplace_back([&, rank] { body(rank, backend(rank)); });
  }
  DeviceBackend& backend(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }
  NcclRank& shared(int rank) { return *shared_[static_cast<std::size_t>(rank)]; }

 private:
  bool in_memory_;
  std::vector<std::shared_ptr<NcclRank>> shared_;
  std::vector<std::unique_ptr<DeviceBackend>> backends_;
};

}  // namespace kolo::testing

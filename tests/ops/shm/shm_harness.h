#pragma once

#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "ops/host/region.h"
#include "ops/shm/backend.h"
#include "tests/ops/backend_conformance.h"
#include "tests/ops/shm/shm_tunings.h"

namespace kolo {

/// Ranks as threads, over heap.
class ShmThreads final : public Harness {
 public:
  explicit ShmThreads(int ranks, const ShmTuning& tuning = {}, bool uses_memory = false)
      : ranks_(ranks),
        uses_memory_(uses_memory),
        region_(heap_region(static_cast<std::size_t>(ranks) * sizeof(Doorbell))),
        doorbells_(region_->at<Doorbell>(0), static_cast<std::size_t>(ranks)),
        backends_(shm_thread_backends(ranks, doorbells_, tuning)) {}

  int ranks() const override { return ranks_; }
  bool uses_memory() const override { return uses_memory_; }
  Doorbell& doorbell(int rank) { return doorbells_[static_cast<std::size_t>(rank)]; }
  Backend& backend(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks_; ++rank) threads.emplace_back([&, rank] { body(rank, backend(rank)); });
  }

 private:
  int ranks_;
  bool uses_memory_;
  std::shared_ptr<Region> region_;
  std::span<Doorbell> doorbells_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace kolo

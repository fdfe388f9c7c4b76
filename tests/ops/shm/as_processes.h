#pragma once

#include <barrier>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/host/gathering.h"
#include "ops/shm/pairs.h"
#include "ops/shm/processes.h"

namespace kolo::testing {

/// What ranks that are threads tell each other.
struct Told {
  explicit Told(int ranks) : words(static_cast<std::size_t>(ranks)), all(ranks) {}
  std::vector<std::vector<std::byte>> words;
  std::barrier<> all;
};

class ThreadGathering final : public Gathering {
 public:
  ThreadGathering(Told& told, int rank) : told_(told), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(told_.words.size()); }
  std::vector<std::vector<std::byte>> all(std::span<const std::byte> mine) override {
    told_.words[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    told_.all.arrive_and_wait();
    auto words = told_.words;
    told_.all.arrive_and_wait();
    return words;
  }
  int lowest_on_node() override { return 0; }

 private:
  Told& told_;
  const int rank_;
};

/// Backends as of processes, all of them this one: what lies in `memory` is mapped, as from another process.
struct AsProcesses {
  explicit AsProcesses(int ranks, std::shared_ptr<const ShmKnown> known = {})
      : shared(static_cast<std::size_t>(ranks)), pairs(shared.size()) {
    Told told(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadGathering gathering(told, rank);
        const auto place = static_cast<std::size_t>(rank);
        shared[place] = shm_process_backend(gathering, {}, [](const std::string&) {});
        pairs[place] = shm_pairs_backend(gathering, {}, {}, shared[place]->memory(), known);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  MemorySource& memory(int rank) { return *shared[static_cast<std::size_t>(rank)]->memory(); }
  std::vector<std::unique_ptr<Backend>> shared, pairs;
};

}  // namespace kolo::testing

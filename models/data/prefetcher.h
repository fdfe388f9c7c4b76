#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "models/data/examples.h"

namespace kolo::models {

/// Makes batches on a background thread, up to two ahead of the training.
class Prefetcher {
 public:
  /// Makes batch `number`. Runs on the prefetcher's thread; it must not share data with other threads.
  using Make = std::function<void(std::int64_t number, BatchStorage& to)>;

  /// Batches first … end-1, in this order. Errors: ModelError if the thread cannot be started.
  Prefetcher(Make make, std::int64_t first, std::int64_t end);
  /// Ends the thread, after the batch that it is making.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next batch; valid until the next call. Errors: ModelError if it could not be made, with the reason.
  Batch next();

 private:
  struct Slot {
    BatchStorage storage;
    std::optional<std::string> problem;
  };
  static constexpr std::int64_t slots = 3;  // one in use, two ahead

  void run();
  void fill(std::int64_t number);

  Make make_;
  std::int64_t end_;
  std::array<Slot, slots> ring_;  // batch n is in slot n mod 3
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t made_;   // batches before it are there
  std::int64_t taken_;  // batches before it were handed out; the last of them is in use
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace kolo::models

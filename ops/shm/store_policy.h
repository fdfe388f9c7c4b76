#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "ops/kernels/copy.h"

namespace kolo {

/// Chooses cached or non-temporal stores for a chunk by timing both.
///
/// Where the cores of the ranks share a cache, writing there is twice as fast, and who reads next finds it there. Where
/// they do not (other sockets, other parts of a chip), each line must first be taken back from the reader's cache,
/// which may take ten times as long as writing past the caches. Which of the two it is no rank can know: threads, and
/// on a virtual machine cores, move, and the application may let others read a result before the next one replaces it.
/// So large chunks are timed: the cache is used unless the other way was clearly faster lately, and every so often the
/// way that is not in use is tried again; soon after a change, then less and less often. Ranks choose for themselves:
/// peers read either.
class StorePolicy final {
 public:
  /// What is timed, and how much faster the other way must be.
  struct Tuning {
    std::size_t least;      ///< bytes; smaller chunks stay in the cache anyway
    double clearly;         ///< times
    unsigned timed_one_of;  ///< of chunks in the way that is in use: else the clock would cost too much
  };
  static constexpr std::size_t large = 32 << 10;
  static constexpr Tuning of_large{large, 1.5, 1};
  /// Whoever reads small chunks waits for them alone, and so longer where they are not in a cache.
  static constexpr Tuning of_small{6 << 10, 3, 7};

  explicit StorePolicy(const Tuning& tuning = of_large) : tuning_(tuning) {}

  /// How to write a chunk of `bytes` bytes.
  CopyTo choose(std::size_t bytes);

  /// Times write(), which writes a chunk in a way that was chosen, and returns how many bytes it wrote.
  template <class Write>
  void measure(std::size_t bytes, CopyTo way, Write write) {
    if (bytes < tuning_.least || (way == in_use_ && ++in_use_ones_ % tuning_.timed_one_of != 0)) return (void)write();
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t written = write();
    learn(bytes, written, way, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }

  /// bytes  those that it was chosen by
  void learn(std::size_t bytes, std::size_t written, CopyTo way, double seconds);

 private:
  double& cost(CopyTo way) { return cost_[static_cast<std::size_t>(way)]; }

  Tuning tuning_;
  std::array<double, 2> cost_{};  // of each way: seconds per byte, lately; 0 if unknown
  CopyTo in_use_ = CopyTo::cache;
  int period_ = 1;            // chunks from one trial to the next
  int since_trial_ = 0;       // chunks
  unsigned in_use_ones_ = 0;  // chunks that went the way that is in use
};

}  // namespace kolo

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kolo::models {

enum class Order : bool { shuffled, sequential };

/// "shuffled" or "sequential". Errors: ModelError for any other word.
Order order_of(std::string_view word);

struct SamplerSettings {
  std::int64_t examples = 0;  ///< in the training set
  std::int64_t batch = 0;     ///< examples per rank and step
  int ranks = 1;
  int rank = 0;
  std::uint64_t seed = 0;
  Order order = Order::shuffled;
};

/// One rank's part of a global step.
struct StepShare {
  std::int64_t epoch = 0;
  bool last_of_epoch = false;
  std::int64_t global_examples = 0;        ///< over all ranks: what the gradients' sum is to be divided by; positive
  std::span<const std::int64_t> examples;  ///< this rank's, as indices into the set; may be empty; until the next at()
};

/// Deals the examples of a set to ranks, every example once per epoch.
///
/// The order of epoch e is the file's, or, shuffled, a Fisher-Yates shuffle of it from the top down by
/// Random(seed ^ 0x5a3d1e2b4c6f7089, e): it depends on the seed and the epoch, not on ranks or batch. A global step
/// takes the next ranks·batch examples of the order, rank r the r-th block of `batch`; the last step of an epoch takes
/// what is left, and late ranks get fewer or none.
class Sampler {
 public:
  /// Errors: ModelError for counts below 1 or a rank that is none.
  explicit Sampler(const SamplerSettings& settings);

  std::int64_t steps_per_epoch() const;

  /// This rank's part of global step `step` (from 0). Steps may be asked for in any sequence, so that training can
  /// resume anywhere; entering another epoch costs one shuffle.
  StepShare at(std::int64_t step);

 private:
  void enter(std::int64_t epoch);

  SamplerSettings settings_;
  std::int64_t epoch_ = -1;  // order_ is this one's
  std::vector<std::int64_t> order_;
};

/// A contiguous run of examples.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Rank `rank`'s even share of `examples`, for evaluation: shares differ by at most one and follow each other in rank
/// order.
Range even_share(std::int64_t examples, int ranks, int rank);

}  // namespace kolo::models

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "models/util/error.h"

namespace kolo::models {

enum class Order : bool { shuffled, sequential };

inline constexpr WordTable<Order, 2> orders{"order", {"shuffled", "sequential"}};
constexpr std::string_view to_string(Order order) {
  return orders[order];
}

struct SamplerSettings {
  std::int64_t examples = 0;  ///< in the training set
  std::int64_t batch = 0;     ///< examples per rank and micro-batch
  int ranks = 1;
  int rank = 0;
  std::int64_t accumulate = 1;  ///< micro-batches per step
  std::uint64_t seed = 0;
  Order order = Order::shuffled;
};

/// The properties of a global step that all ranks and micro-batches share.
struct StepPlace {
  std::int64_t epoch = 0;
  bool last_of_epoch = false;
  std::int64_t global_examples = 0;  ///< over all ranks and micro-batches: the divisor of summed gradients; positive
};

/// One rank's examples of a micro-batch of a global step.
struct StepShare : StepPlace {
  std::span<const std::int64_t> examples;  ///< indices into the set; may be empty; valid until the next at()
};

/// Distributes the examples of a set over the ranks, every example once per epoch.
///
/// The order of epoch e is the file's, or, shuffled, a Fisher-Yates shuffle of it from the top down by
/// Random(seed ^ 0x5a3d1e2b4c6f7089, e): it depends on the seed and the epoch, not on ranks or batch. A global step
/// takes the next ranks·batch·accumulate examples of the order, each micro-batch of it the next ranks·batch of these,
/// rank r the r-th block of `batch`; the last step of an epoch takes what is left, and late micro-batches and ranks get
/// fewer or none.
class Sampler {
 public:
  /// Errors: ModelError for counts below 1 or a rank that is none.
  explicit Sampler(const SamplerSettings& settings);

  std::int64_t steps_per_epoch() const;

  /// The epoch and size of global step `step`, from 0.
  StepPlace place(std::int64_t step) const;

  /// This rank's examples of micro-batch `micro` of global step `step`. Steps may be requested in any order, so that
  /// training can resume anywhere; a change of epoch costs one shuffle.
  StepShare at(std::int64_t step, std::int64_t micro = 0);

 private:
  std::int64_t per_micro_batch() const { return settings_.batch * settings_.ranks; }
  std::int64_t per_step() const { return per_micro_batch() * settings_.accumulate; }
  void enter(std::int64_t epoch);

  SamplerSettings settings_;
  std::int64_t epoch_ = -1;  // order_ is this one's
  std::vector<std::int64_t> order_;
};

}  // namespace kolo::models

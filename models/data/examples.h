#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "models/compute/buffer.h"
#include "models/model/model.h"

namespace kolo::models {

/// The memory of a batch, reused for the next one.
struct BatchStorage {
  std::int64_t examples = 0;
  AlignedFloats inputs;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;

  Batch view() const { return {.examples = examples, .inputs = inputs, .tokens = tokens, .targets = targets}; }
};

/// A source of examples: images with labels, or windows of a token stream. Thread-safe.
class Examples {
 public:
  virtual ~Examples() = default;

  virtual std::int64_t count() const = 0;

  /// Targets of one example: 1 for an image, its positions for a sequence.
  virtual std::int64_t targets_each() const = 0;

  /// Makes a batch of the examples with these indices, in this order. `epoch` counts from 0; random
  /// augmentation depends on it and on the index only. Errors: ModelError for an example that cannot be used.
  virtual void gather(std::span<const std::int64_t> examples, std::int64_t epoch, BatchStorage& to) const = 0;
};

/// A contiguous run of examples.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Rank `rank`'s even share of `examples`, for evaluation: shares differ by at most one and follow each other in rank
/// order.
Range even_share(std::int64_t examples, int ranks, int rank);

/// What an evaluation is of.
struct EvaluationShare {
  Range range;
  std::int64_t batch = 1;  ///< examples of a batch
  /// At most so many batches, spread evenly over the range; the same ones every time.
  std::int64_t most = std::numeric_limits<std::int64_t>::max();

  /// Batches of the whole range.
  std::int64_t all_batches() const { return (range.count + batch - 1) / batch; }
  std::int64_t batches() const { return std::min(most, all_batches()); }
  /// The examples of batch `number` of batches().
  Range at(std::int64_t number) const;
  /// Those of all batches().
  std::int64_t examples() const;
};

/// Sums of Model::evaluate over these batches.
///
/// on_batch  called with each batch before it is evaluated; false: neither it nor a later one is. May be empty
BatchResult evaluate(Model& model, const Examples& examples, const EvaluationShare& share,
                     const std::function<bool(const Batch& batch)>& on_batch = {});

}  // namespace kolo::models

#pragma once

#include <cstdint>
#include <functional>
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

/// Sums of Model::evaluate over a run of examples, in batches of `batch`.
///
/// progress  called before each batch with the number of examples done; may be empty
BatchResult evaluate(Model& model, const Examples& examples, const Range& range, std::int64_t batch,
                     const std::function<void(std::int64_t)>& progress = {});

}  // namespace kolo::models

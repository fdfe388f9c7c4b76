#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kolo/reduce_fn.h>
#include <kolo/tensor.h>

namespace kolo::models {

/// One trainable tensor. Storage for value and gradient is handed to the model, so that an arena can hold either.
struct Parameter {
  std::string name;  ///< as in checkpoints: "layers.0.weight"
  Shape shape;       ///< a linear layer's weight is [out, in]
  std::span<float> value;
  std::span<float> gradient;
};

/// Examples of one rank's share of a step: images, or sequences of tokens. Views; valid until the loader makes the next
/// batch.
struct Batch {
  std::int64_t examples = 0;              ///< may be 0: a rank with nothing left still takes part
  std::span<const float> inputs;          ///< images: [examples, …] as the model expects them
  std::span<const std::int32_t> tokens;   ///< sequences: [examples, positions]
  std::span<const std::int32_t> targets;  ///< [examples] or [examples, positions]; -1 is not counted (padding)
};

/// Sums over the targets of a batch: adding ranks' results and dividing by all targets weighs uneven batches right.
struct BatchResult {
  double loss_sum = 0;       ///< sum of the targets' cross-entropies, in nats
  std::int64_t correct = 0;  ///< of how many targets the largest logit was theirs
  std::int64_t targets = 0;  ///< how many were counted
};

/// How a backward pass leaves the gradients.
struct Pass {
  bool add = false;  ///< to what they hold, instead of overwriting it: gradient accumulation
  float scale = 1;   ///< what the loss is multiplied by before it is differentiated: a power of two keeps small
                     ///< gradients of 16-bit passes from vanishing
};

/// Called by forward_backward as soon as parameter `index`'s gradient is final, last layer first.
using GradReady = std::function<void(std::size_t index)>;

/// What is trained. Knows no runtime: a program that sums gradients over ranks listens to `grad_ready`.
class Model {
 public:
  virtual ~Model() = default;

  /// In the order of the forward pass; the same on every rank.
  virtual std::span<const Parameter> parameters() const = 0;

  /// Hands out storage: `values` and `gradients` hold parameter_elements() floats each, laid out as parameters() are
  /// listed, one after the other. Must be called once before any pass; contents of `values` are the model's weights
  /// from then on. Storage that begins at a multiple of 64 bytes is faster (models/compute/buffer.h).
  virtual void bind(std::span<float> values, std::span<float> gradients) = 0;

  /// Fills the values with fresh random weights; the same seed gives the same weights everywhere.
  virtual void initialise(std::uint64_t seed) = 0;

  /// One pass forward and back. Writes, or adds, gradients of the batch's loss_sum, calling `grad_ready` for each.
  virtual BatchResult forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) = 0;
  BatchResult forward_backward(const Batch& batch, const GradReady& grad_ready) {
    return forward_backward(batch, grad_ready, Pass{});
  }

  /// One pass forward.
  virtual BatchResult evaluate(const Batch& batch) = 0;

  /// Bytes of everything that the largest pass so far kept or worked in: what a run needs beside values, gradients and
  /// the optimizer's state.
  virtual std::size_t activation_bytes() const = 0;
};

/// Elements of all parameters together.
std::size_t parameter_elements(const Model& model);

/// What bind() does: cuts the storage up among the parameters. Errors: ModelError if it is of another size.
void bind_parameters(std::span<Parameter> parameters, std::span<float> values, std::span<float> gradients);

/// What a backward pass does with no examples: leaves gradients that are added to as they are, makes the others 0, and
/// announces all, last first.
void no_gradients(std::span<const Parameter> parameters, const GradReady& grad_ready, const Pass& pass);

/// The elements of a parameter that a rank updates: all of them, or its part where ranks share the work out (the
/// optimizer's state in parts is stage 1 of ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054).
struct Shard {
  std::size_t first = 0;
  std::size_t count = 0;
  bool split = false;  ///< other ranks update the rest
};

}  // namespace kolo::models

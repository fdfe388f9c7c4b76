#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/precision.h"
#include "models/layers/layers.h"
#include "models/model/model.h"

namespace kolo::models {

/// Fully connected layers with max(0, ·) between them and softmax cross-entropy behind the last.
///
/// Parameters are "layers.0.weight" [out, in], "layers.0.bias" [out], "layers.1.weight", … Gradients become final bias
/// first, then weight, from the last layer to the first; a layer's weight gradient is announced before the pass goes on
/// to the layer below. One thread at a time.
class Mlp final : public Model {
 public:
  /// sizes  units of the input, of each hidden layer and of the output: at least two numbers, all positive (else
  /// ModelError)
  explicit Mlp(std::vector<std::int64_t> sizes, Precision precision = Precision::f32);

  std::span<const Parameter> parameters() const override { return parameters_; }
  void bind(std::span<float> values, std::span<float> gradients) override;

  /// Weights and biases uniform in ±1/√in, which is what PyTorch's Linear starts from (Kaiming with a = √5).
  /// Parameter i takes its numbers, in order, from Random(seed, i).
  void initialise(std::uint64_t seed) override;

  using Model::forward_backward;
  BatchResult forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) override;
  BatchResult evaluate(const Batch& batch) override;
  std::size_t activation_bytes() const override;

  /// Runs the forward pass only and returns [examples, classes]; valid until the next pass.
  std::span<const float> logits(const Batch& batch);

  std::span<const std::int64_t> sizes() const { return sizes_; }

 private:
  std::size_t layers() const { return sizes_.size() - 1; }
  const Parameter& weight(std::size_t layer) const { return parameters_[2 * layer]; }
  const Parameter& bias(std::size_t layer) const { return parameters_[2 * layer + 1]; }
  void check(const Batch& batch) const;
  void forward(const Batch& batch);
  void backward(const Batch& batch, const GradReady& grad_ready, Gradient gradient);

  std::vector<std::int64_t> sizes_;
  Precision precision_;
  std::vector<Parameter> parameters_;
  bool bound_ = false;
  /// A layer's output, [examples, out] (the last one's are the logits), and the operands of its products: input and
  /// weights, rounded unless the precision is f32.
  struct Layer {
    Buffer output, input_memory, weight_memory;
    const MatmulItem* input = nullptr;
    const MatmulItem* weight = nullptr;
  };
  std::vector<Layer> layers_;
  Buffer delta_, delta_below_, delta_memory_;  // gradient of a layer's output, and of the one's below it
};

}  // namespace kolo::models

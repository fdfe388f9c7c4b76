#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/convolution.h"
#include "models/compute/kernels.h"
#include "models/layers/batch_norm.h"
#include "models/layers/layers.h"
#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// Convolution 3×3, ReLU, max-pooling 2×2, a hidden layer with ReLU, a last one, softmax cross-entropy.
///
/// Parameters are "conv1.weight" [filters, channels, 3, 3], "conv1.bias", "dense1.weight" [dense, filters·places],
/// "dense1.bias", "dense2.weight", "dense2.bias"; inputs are [examples, channels, height, width]. Gradients become
/// final from the last layer to the first. One thread at a time.
///
/// With batch norm (Ioffe & Szegedy 2015, arXiv:1502.03167) there are "bn1.weight" and "bn1.bias" [filters] behind the
/// convolution's, and "bn1.running_mean" and "bn1.running_var", which training moves by a tenth towards each batch's
/// and evaluation uses; as parameters whose gradient is 0 they are broadcast, saved and loaded like the others. A batch
/// is that of all ranks: `reduce` sums two small tensors in the forward pass and one in the backward pass, also on
/// ranks without examples.
class Cnn final : public Model {
 public:
  /// Errors: ModelError for sizes that make no model.
  explicit Cnn(const CnnSettings& settings, Precision precision = Precision::f32, ReduceFn reduce = {});

  std::span<const Parameter> parameters() const override { return parameters_; }
  void bind(std::span<float> values, std::span<float> gradients) override;

  /// Weights and biases uniform in ±1/√in, as PyTorch's layers begin; norms with gain 1 and bias 0. Parameter i
  /// takes its numbers, in order, from Random(seed, i).
  void initialise(std::uint64_t seed) override;

  using Model::forward_backward;
  BatchResult forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) override;
  BatchResult evaluate(const Batch& batch) override;
  std::size_t activation_bytes() const override;

  /// Runs the forward pass only, as evaluate() does, and returns [examples, classes]; valid until the next pass.
  std::span<const float> logits(const Batch& batch);

  const CnnSettings& settings() const { return settings_; }

 private:
  /// One fully connected layer and its buffers.
  struct Dense {
    std::int64_t inputs = 0;
    std::int64_t outputs = 0;
    std::size_t parameter = 0;  // the weight's index; the bias follows it
    Buffer output, input_memory, weight_memory;
    const MatmulItem* input = nullptr;
    const MatmulItem* weight = nullptr;
  };

  float* value(std::size_t index) const { return parameters_[index].value.data(); }
  float* gradient(std::size_t index) const { return parameters_[index].gradient.data(); }
  ConvolutionShape convolution(std::int64_t examples) const;
  FilterOutputs outputs(std::int64_t examples) const;
  PoolView pool_view(std::int64_t filter, const float* x) const;
  std::int64_t pooled_places() const;
  void check(const Batch& batch) const;

  void forward(const Batch& batch, bool training);
  void pool(std::int64_t examples);
  void dense_forward(Dense& layer, std::int64_t examples, const float* in, Activation activation);

  void backward(const Batch& batch, const GradReady& grad_ready, bool add);
  void dense_backward(const Dense& layer, std::int64_t examples, bool add, const GradReady& grad_ready);
  void pool_backward(std::int64_t examples, float* d);
  void norm_backward(std::int64_t examples, const GradReady& grad_ready, bool add, float* d);
  const float* in_precision(std::int64_t count, const float* values, Buffer& into);

  CnnSettings settings_;
  Precision precision_;
  std::vector<Parameter> parameters_;
  bool bound_ = false;
  std::int64_t block_;  // of filters
  std::optional<BatchNorm> norm_;
  Dense hidden_, last_;
  Buffer convolved_, pooled_, one_pooled_;
  Buffer d_convolved_;                         // with a norm, whose backward pass needs convolved_
  Buffer delta_, delta_below_, delta_memory_;  // gradient of a layer's output, and of the one's below it
  Buffer rounded_, rounded_x_, rounded_w_, rounded_d_;
};

}  // namespace kolo::models

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/layers/layer.h"

namespace kolo::models {

/// The end of a model: from the last layer's output to the losses of a batch. In training the losses are computed in
/// the pass back, together with their gradient: logits are passed over once.
class Loss {
 public:
  virtual ~Loss() = default;

  virtual std::int64_t classes() const = 0;
  virtual std::unique_ptr<Kept> make_kept() const = 0;

  /// Adds the losses of targets [examples] or [sequences, positions] to sums, as Compute::cross_entropy.
  virtual void forward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept,
                       const Context& context) = 0;
  /// The same; returns the gradient of the input.
  virtual Flow backward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept,
                        const Context& context) = 0;

  /// [count, classes] of rows first … first+count-1 of the input; valid until the next call.
  virtual Tensor logits(const Flow& in, std::int64_t first, std::int64_t count, Kept& kept, const Context& context) = 0;

  virtual void backward_order(std::vector<std::size_t>& order) const = 0;
};

/// The input are the logits, of any rows.
class CrossEntropy final : public Loss {
 public:
  CrossEntropy(ParameterList&, std::int64_t classes) : classes_(classes) {}

  std::int64_t classes() const override { return classes_; }
  std::unique_ptr<Kept> make_kept() const override;
  void forward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept, const Context& context) override;
  Flow backward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept, const Context& context) override;
  Tensor logits(const Flow& in, std::int64_t first, std::int64_t count, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>&) const override {}

 private:
  std::int64_t classes_;
};

/// Rows first … first+count-1 of a tensor of rows.
Tensor rows_of(const Tensor& tensor, std::int64_t width, std::int64_t first, std::int64_t count);

}  // namespace kolo::models

#pragma once

#include <string_view>

#include "models/layers/layer.h"

namespace kolo::models {

/// y = x·wᵀ + bias, with or without ReLU. Parameters: NAME.weight [out, in], NAME.bias [out]. Of an example all numbers
/// are inputs, whatever their extents.
class Linear final : public Layer {
 public:
  /// Errors: ModelError unless there are inputs and outputs, and at most 2^48 weights.
  Linear(ParameterList& parameters, std::string_view name, std::int64_t in, std::int64_t out,
         Activation activation = Activation::none);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  bool takes_kept() const override { return true; }
  bool keeps_gradient() const override { return activation_ == Activation::none; }

 private:
  std::int64_t in_, out_;
  Activation activation_;
  std::size_t weight_, bias_;
};

}  // namespace kolo::models

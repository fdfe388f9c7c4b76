#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/layers/layer.h"

namespace kolo::models {

/// x [sequences, positions, dim] = the rows of NAME.weight [vocabulary, dim] that i32 tokens [sequences, positions]
/// name.
class Embedding final : public Layer {
 public:
  Embedding(ParameterList& parameters, std::string_view name, std::int64_t vocabulary, std::int64_t dim);

  /// Another layer, which runs later, has the same weight: this one adds to its gradient, which is final here.
  std::size_t share() {
    shared_ = true;
    return weight_;
  }

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override { order.push_back(weight_); }

 private:
  Shape table_;
  bool shared_ = false;
  std::size_t weight_;
};

/// x / √(mean of its squares + eps), times NAME.weight [dim], in the dtype of products.
class RmsNorm final : public Layer {
 public:
  RmsNorm(ParameterList& parameters, std::string_view name, std::int64_t dim, double eps = 1e-5);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override { order.push_back(gain_); }
  bool takes_more() const override { return true; }
  bool keeps_gradient() const override { return true; }

  /// Adds the gradient of the input to d, given dh, that of the output; writes d_items = d, rounded, unless it is
  /// empty.
  void add_backward(const Tensor& dh, const Tensor& d, const Tensor& d_items, Kept& kept, const Context& context) const;

  /// What was normalised: x, or x + more.
  static const Tensor& normalised(const Kept& kept);

 private:
  std::int64_t dim_;
  double eps_;
  std::size_t gain_;
};

/// Causal self-attention with rotary positions and grouped queries (Ainslie et al. 2023, arXiv:2305.13245). Parameters:
/// NAME.q_proj.weight [heads·head_dim, dim], NAME.k_proj.weight and NAME.v_proj.weight [kv_heads·head_dim, dim],
/// NAME.o_proj.weight [dim, heads·head_dim]. x is [sequences, positions, dim].
class Attention final : public Layer {
 public:
  /// rotations  rotation_steps(), maybe scaled
  /// residual   the deviation with which o_proj begins
  Attention(ParameterList& parameters, std::string_view name, std::int64_t dim, const Heads& heads,
            std::vector<double> rotations, double residual = 0.02);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  bool keeps_gradient() const override { return true; }

 private:
  std::int64_t out() const { return heads_.heads * heads_.head_dim; }
  RotationTables rotations(const Context& context, std::int64_t positions) const;

  std::int64_t dim_;
  Heads heads_;
  std::vector<double> steps_;
  std::size_t q_, k_, v_, o_;
};

/// down·(silu(gate·x) · up·x) (Shazeer 2020, arXiv:2002.05202). Parameters: NAME.gate_proj.weight and
/// NAME.up_proj.weight [width, dim], NAME.down_proj.weight [dim, width].
class SwiGlu final : public Layer {
 public:
  /// residual  the deviation with which down_proj begins
  SwiGlu(ParameterList& parameters, std::string_view name, std::int64_t dim, std::int64_t width,
         double residual = 0.02);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  bool keeps_gradient() const override { return true; }

 private:
  std::int64_t dim_, width_;
  std::size_t gate_, up_, down_;
};

/// x + inner(norm(x)).
class Residual final : public Layer {
 public:
  /// inner  must not overwrite its gradient (ModelError): it ends in a layer without activation
  Residual(std::unique_ptr<RmsNorm> norm, std::unique_ptr<Layer> inner);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  bool takes_more() const override { return true; }

 private:
  std::unique_ptr<RmsNorm> norm_;
  std::unique_ptr<Layer> inner_;
};

}  // namespace kolo::models

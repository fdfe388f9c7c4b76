#pragma once

#include <vector>

#include "models/optim/optimizer.h"

namespace kolo::models {

struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// Where weight decay comes in: as a gradient of its own (Adam), or straight off the value (AdamW).
enum class Decay : bool { in_gradient, decoupled };

/// Adam (Kingma & Ba 2015, arXiv:1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), by PyTorch's
/// formulas. In step t = 1, 2, …, with the weight decay λ of parameters that have two dimensions or more:
///
///     AdamW: w ← w − lr·λ·w          Adam: g ← g + λ·w
///     m ← β1·m + (1 − β1)·g          v ← β2·v + (1 − β2)·g²
///     w ← w − lr/(1 − β1^t) · m / (√v/√(1 − β2^t) + eps)
///
/// Elements of m below 1e-30 and of v below 1e-36, far less than eps makes of them, become 0: denormals are slow.
class Adam final : public Optimizer {
 public:
  /// parameters  bound to storage; they and the storage must outlive this
  /// Errors: ModelError for a setting that is out of range.
  Adam(std::span<const Parameter> parameters, const AdamSettings& settings, Decay decay);

  void begin_step(double lr, double gradient_scale) override;
  using Optimizer::update;
  void update(std::size_t index, std::size_t first, std::size_t count) override;
  std::vector<OptimizerTensor> state() override;

 private:
  AdamSettings settings_;
  Decay decay_;
  double lr_ = 0;
  float gradient_scale_ = 1;
  std::vector<AlignedFloats> mean_;    // m, as the parameters
  std::vector<AlignedFloats> square_;  // v
};

}  // namespace kolo::models

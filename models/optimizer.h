#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/aligned.h"
#include "models/model.h"

namespace kolo::models {

/// What an optimizer needs beyond the learning rate.
struct OptimizerSettings {
  std::string name = "sgd";
  double momentum = 0.9;
};

/// Turns gradients into better values, one parameter at a time, so that a parameter can be updated as soon as its
/// summed gradient has arrived. Gradients are left as they are. One thread at a time.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Begins the next step: every parameter is then updated once, in any order.
  ///
  /// lr              learning rate of this step
  /// gradient_scale  what gradients are multiplied by as they are read: 1 / examples of the step, over all ranks
  virtual void begin_step(double lr, double gradient_scale) = 0;

  /// Updates the value of parameter `index` from its gradient.
  virtual void update(std::size_t index) = 0;

  /// A whole step.
  void step(double lr, double gradient_scale);

 protected:
  explicit Optimizer(std::span<const Parameter> parameters) : parameters_(parameters) {}
  std::span<const Parameter> parameters() const { return parameters_; }

 private:
  std::span<const Parameter> parameters_;
};

/// v ← momentum·v + g; w ← w − lr·v, where v starts at 0 (PyTorch's SGD). Elements of v below 1e-30 become 0: a unit
/// that no longer gets gradients would keep its v among the denormals for ever, and they cost a hundred times as much.
class Sgd final : public Optimizer {
 public:
  /// parameters  bound to storage; they and the storage must outlive this
  /// momentum    0 ≤ momentum < 1, else ModelError
  Sgd(std::span<const Parameter> parameters, double momentum);

  void begin_step(double lr, double gradient_scale) override;
  void update(std::size_t index) override;

 private:
  float momentum_;
  float lr_ = 0;
  float gradient_scale_ = 1;
  std::vector<AlignedFloats> velocity_;  // as the parameters
};

/// The optimizer of that name, for parameters that are bound. Errors: ModelError that lists the known names.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, std::span<const Parameter> parameters);

}  // namespace kolo::models

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"
#include "models/model/model.h"

namespace kolo::models {

/// The settings of all optimizers except the learning rate; each reads its own.
struct OptimizerSettings {
  std::string name = "sgd";  ///< sgd, adam or adamw
  double momentum = 0.9;     ///< of sgd, 0 ≤ momentum < 1
  double beta1 = 0.9;        ///< of adam and adamw: decay of the first moment, 0 ≤ beta1 < 1
  double beta2 = 0.999;      ///< of adam and adamw: decay of the second moment, 0 ≤ beta2 < 1
  double eps = 1e-8;         ///< of adam and adamw: added to the root of the second moment, above 0
  double weight_decay = 0;   ///< of parameters that decay, at least 0
};

/// One tensor of an optimizer's state.
struct OptimizerTensor {
  std::string name;       ///< "velocity.layers.0.weight": the kind of state, then the parameter's name
  std::size_t parameter;  ///< its index
  Tensor values;          ///< f32 [elements of this rank's shard], where the parameter is
};

/// Updates values by gradients, one parameter at a time, as soon as its summed gradient has arrived. Gradients are not
/// changed. Use it from one thread at a time.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Begins the next step: every element of every parameter is then updated once, in any order.
  ///
  /// lr              learning rate of this step
  /// gradient_scale  factor of the gradients: 1 / targets of the step, over all ranks
  virtual void begin_step(double lr, double gradient_scale) = 0;

  /// The same, of gradients whose sums of squares (f64, where the parameters are) are known: they are scaled down where
  /// their norm is above `most`, and nothing is updated if it is not finite.
  void begin_clipped_step(double lr, double gradient_scale, double most, const Tensor& squares);

  /// Updates this rank's shard of parameter `index`, from its gradients.
  ///
  /// squares  f64, one number: becomes the sum of the squares of these gradients; empty: not wanted
  virtual void update(std::size_t index, const Tensor& squares = {}) = 0;

  /// The same of all parameters that are trained, at once: on a GPU that takes less time than one by one.
  virtual void update_all() = 0;

  /// A whole step.
  void step(double lr, double gradient_scale);

  /// The state, for checkpoints. Views, valid as long as this lives.
  virtual std::vector<OptimizerTensor> state() = 0;

  /// Where updates are computed: where the parameters are.
  Compute& compute() const { return *compute_; }

  /// Steps begun; part of the state.
  std::int64_t steps_begun() const { return steps_begun_; }
  void set_steps_begun(std::int64_t steps) { steps_begun_ = steps; }

 protected:
  /// shards  of this rank, one for each parameter; empty: all elements. There is state for these only
  Optimizer(std::span<const Parameter> parameters, std::vector<Shard> shards);
  std::span<const Parameter> parameters() const { return parameters_; }

  void count_step(double gradient_scale);
  /// On the device, of the step that was counted last.
  Tensor gradient_scale() { return scale_memory_.make(*compute_, DType::f32, {2}, "a step's scale"); }

  /// updated(index) of each parameter that is trained.
  template <class Updated>
  std::vector<UpdatedTensor> all_updated(Updated updated) const {
    std::vector<UpdatedTensor> tensors;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].trained) tensors.push_back(updated(i));
    }
    return tensors;
  }

  /// This rank's shard of a parameter, without its state.
  UpdatedTensor shard_of(std::size_t index) const;

  /// One kind of state: zeros for each trained parameter's shard.
  class State {
   public:
    explicit State(const Optimizer& optimizer);
    Tensor of(std::size_t index) const { return tensors_[index]; }

   private:
    std::vector<Buffer> memory_;
    std::vector<Tensor> tensors_;  // by parameter
  };

  /// Names its tensors KIND.PARAMETER.
  void append_state(std::string_view kind, const State& state, std::vector<OptimizerTensor>& to) const;

 private:
  std::span<const Parameter> parameters_;
  std::vector<Shard> shards_;
  std::unique_ptr<Compute> compute_;
  Buffer scale_memory_;
  std::int64_t steps_begun_ = 0;
};

/// v ← momentum·v + g; w ← w − lr·v, where v starts at 0 (PyTorch's SGD).
class Sgd final : public Optimizer {
 public:
  /// parameters  bound to storage; they and the storage must outlive this
  /// momentum    0 ≤ momentum < 1, else ModelError
  /// shards      of this rank, one for each parameter; empty: all elements
  Sgd(std::span<const Parameter> parameters, double momentum, std::vector<Shard> shards = {});

  void begin_step(double lr, double gradient_scale) override;
  void update(std::size_t index, const Tensor& squares = {}) override;
  void update_all() override;
  std::vector<OptimizerTensor> state() override;

 private:
  UpdatedTensor updated(std::size_t index) const;
  SgdStep step_of();

  float momentum_;
  float lr_ = 0;
  std::optional<State> velocity_;
};

struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// Weight decay is added to the gradient (Adam), or subtracted from the value (AdamW).
enum class Decay : bool { in_gradient, decoupled };

/// Adam (Kingma & Ba 2015, arXiv:1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), by PyTorch's
/// formulas. In step t = 1, 2, …, with the weight decay λ of parameters that decay:
///
///     AdamW: w ← w − lr·λ·w          Adam: g ← g + λ·w
///     m ← β1·m + (1 − β1)·g          v ← β2·v + (1 − β2)·g²
///     w ← w − lr/(1 − β1^t) · m / (√v/√(1 − β2^t) + eps)
class Adam final : public Optimizer {
 public:
  /// parameters  bound to storage; they and the storage must outlive this
  /// shards      of this rank, one for each parameter; empty: all elements
  /// Errors: ModelError for a setting that is out of range.
  Adam(std::span<const Parameter> parameters, const AdamSettings& settings, Decay decay,
       std::vector<Shard> shards = {});

  void begin_step(double lr, double gradient_scale) override;
  void update(std::size_t index, const Tensor& squares = {}) override;
  void update_all() override;
  std::vector<OptimizerTensor> state() override;

 private:
  UpdatedTensor updated(std::size_t index) const;
  AdamStep step_of();

  AdamSettings settings_;
  Decay decay_;
  double lr_ = 0;
  std::optional<State> mean_, square_;  // m and v
};

inline constexpr std::array<std::string_view, 3> known_optimizers{"adam", "adamw", "sgd"};

/// The optimizer of that name, for parameters that are bound. `shards` as of Adam. Errors: ModelError that lists the
/// known names, or says what a setting may be.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, std::span<const Parameter> parameters,
                                          std::vector<Shard> shards = {});

}  // namespace kolo::models

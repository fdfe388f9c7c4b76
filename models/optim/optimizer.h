#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  std::string name;         ///< "velocity.layers.0.weight": the kind of state, then the parameter's name
  Shape shape;              ///< the parameter's
  std::span<float> values;  ///< of this rank's shard
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

  /// Updates elements first … first+count-1 of parameter `index`, all of this rank's shard, from their gradients.
  ///
  /// squares  f64, one number: becomes the sum of the squares of these gradients; empty: not wanted
  virtual void update(std::size_t index, std::size_t first, std::size_t count, const Tensor& squares) = 0;

  /// Updates all that this rank updates of parameter `index`.
  void update(std::size_t index, const Tensor& squares = {}) {
    update(index, shards_[index].first, shards_[index].count, squares);
  }

  /// A whole step.
  void step(double lr, double gradient_scale);

  /// The state, for checkpoints. Views, valid as long as this lives.
  virtual std::vector<OptimizerTensor> state() = 0;

  /// Where updates are computed.
  Compute& compute() const { return *compute_; }

  /// Steps begun; part of the state.
  std::int64_t steps_begun() const { return steps_begun_; }
  void set_steps_begun(std::int64_t steps) { steps_begun_ = steps; }

 protected:
  /// shards  of this rank, one for each parameter; empty: all elements. There is state for these only
  Optimizer(std::span<const Parameter> parameters, std::vector<Shard> shards)
      : parameters_(parameters),
        shards_(shards.empty() ? whole_shards(parameters) : std::move(shards)),
        compute_(make_compute()) {}
  std::span<const Parameter> parameters() const { return parameters_; }
  /// Element `element` of parameter `index`, in a tensor of zeros().
  float* at(std::vector<AlignedFloats>& tensors, std::size_t index, std::size_t element) const {
    return tensors[index].data() + (element - shards_[index].first);
  }
  void count_step() { ++steps_begun_; }

  /// Elements first … of a parameter, without its state.
  UpdatedTensor elements(std::size_t index, std::size_t first, std::size_t count) const;

  /// A tensor of zeros for each parameter's shard.
  std::vector<AlignedFloats> zeros() const;
  /// Views of such tensors, named KIND.PARAMETER.
  void append_state(std::string_view kind, std::vector<AlignedFloats>& tensors, std::vector<OptimizerTensor>& to) const;

 private:
  std::span<const Parameter> parameters_;
  std::vector<Shard> shards_;
  std::unique_ptr<Compute> compute_;
  std::int64_t steps_begun_ = 0;
};

/// v ← momentum·v + g; w ← w − lr·v, where v starts at 0 (PyTorch's SGD). Elements of v below 1e-30 become 0: the v of
/// a unit without gradients would stay denormal, and arithmetic on denormals is a hundred times slower.
class Sgd final : public Optimizer {
 public:
  /// parameters  bound to storage; they and the storage must outlive this
  /// momentum    0 ≤ momentum < 1, else ModelError
  /// shards      of this rank, one for each parameter; empty: all elements
  Sgd(std::span<const Parameter> parameters, double momentum, std::vector<Shard> shards = {});

  void begin_step(double lr, double gradient_scale) override;
  using Optimizer::update;
  void update(std::size_t index, std::size_t first, std::size_t count, const Tensor& squares) override;
  std::vector<OptimizerTensor> state() override;

 private:
  float momentum_;
  float lr_ = 0;
  float gradient_scale_ = 1;
  std::vector<AlignedFloats> velocity_;  // as the parameters
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
///
/// Elements of m below 1e-30 and of v below 1e-36, far less than eps makes of them, become 0: denormals are slow.
class Adam final : public Optimizer {
 public:
  /// parameters  bound to storage; they and the storage must outlive this
  /// shards      of this rank, one for each parameter; empty: all elements
  /// Errors: ModelError for a setting that is out of range.
  Adam(std::span<const Parameter> parameters, const AdamSettings& settings, Decay decay,
       std::vector<Shard> shards = {});

  void begin_step(double lr, double gradient_scale) override;
  using Optimizer::update;
  void update(std::size_t index, std::size_t first, std::size_t count, const Tensor& squares) override;
  std::vector<OptimizerTensor> state() override;

 private:
  AdamSettings settings_;
  Decay decay_;
  double lr_ = 0;
  float gradient_scale_ = 1;
  std::vector<AlignedFloats> mean_;    // m, as the parameters
  std::vector<AlignedFloats> square_;  // v
};

inline constexpr std::array<std::string_view, 3> known_optimizers{"adam", "adamw", "sgd"};

/// The optimizer of that name, for parameters that are bound. `shards` as of Adam. Errors: ModelError that lists the
/// known names, or says what a setting may be.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, std::span<const Parameter> parameters,
                                          std::vector<Shard> shards = {});

}  // namespace kolo::models

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

/// One tensor of a model. The program provides the storage of value and gradient, such as an arena.
struct Parameter {
  std::string name;     ///< as in checkpoints: "layers.0.weight"
  Shape shape;          ///< a linear layer's weight is [out, in]
  Tensor value{};       ///< f32 of this shape, on the model's device
  Tensor gradient{};    ///< the same; empty of one that is not trained
  bool decays = false;  ///< by an optimizer's weight decay: matrices do, biases and norms do not
  bool trained =
      true;  ///< false: a buffer, such as running statistics. It is broadcast, saved and loaded as others are
};

/// One rank's examples of a step: images, or sequences of tokens. Views; valid until the loader makes the next batch.
struct Batch {
  std::int64_t examples = 0;              ///< may be 0: a rank without examples still takes part
  std::span<const float> inputs;          ///< images: [examples, …] as the model expects them
  std::span<const std::int32_t> tokens;   ///< sequences: [examples, positions]
  std::span<const std::int32_t> targets;  ///< [examples] or [examples, positions]; -1 is not counted (padding)
};

/// Sums over the targets of a batch. The mean over ranks is the sum of their results divided by all targets.
struct BatchResult {
  double loss_sum = 0;       ///< sum of the targets' cross-entropies, in nats
  std::int64_t correct = 0;  ///< targets whose logit was the largest
  std::int64_t targets = 0;  ///< targets counted
};

/// Options of a backward pass.
struct Pass {
  bool add = false;  ///< gradient accumulation: add to the gradients instead of overwriting them
  float scale = 1;   ///< loss scale: a power of two keeps small gradients of 16-bit passes from underflow
};

/// Called by a pass back as soon as parameter `index`'s gradient is final, last layer first.
using GradReady = std::function<void(std::size_t index)>;

/// What a pass forward is for.
enum class Purpose : bool { evaluation, training };

/// What one micro-batch keeps from its pass forward to its pass back, made by Model::make_slot(); must not outlive the
/// model.
class Slot {
 public:
  virtual ~Slot() = default;
};

class Compute;
class ParameterStore;

/// A model to train. Independent of any runtime: programs that sum gradients over ranks do so in `grad_ready`.
class Model {
 public:
  virtual ~Model() = default;

  /// In the order of the forward pass; the same on every rank.
  virtual std::span<const Parameter> parameters() const = 0;

  /// The order in which every pass back announces gradients, the last layer's first; the same on every rank. Buffers
  /// are not in it.
  virtual std::vector<std::size_t> backward_order() const = 0;

  /// Where the passes are computed.
  virtual Compute& compute() = 0;

  /// Sets the storage, f32 on the model's device: `values` has value_elements(), and `gradients` gradient_elements(),
  /// one parameter behind the other. Must be called once before any pass; the contents of `values` are the model's
  /// weights from then on. Without `gradients`, a Tensor{}, there are passes forward only: a pass back, and an
  /// optimizer, are then errors (ModelError). Storage that begins at a multiple of 64 bytes is faster
  /// (models/compute/buffer.h).
  virtual void bind(const Tensor& values, const Tensor& gradients) = 0;

  /// What the passes ask for the parameters: behind bind() a store that keeps them all, until use() names another one,
  /// which must outlive the passes.
  virtual ParameterStore& store() = 0;
  virtual void use(ParameterStore& store) = 0;

  /// Fills the values with fresh random weights; the same seed gives the same weights everywhere.
  virtual void initialise(std::uint64_t seed) = 0;

  /// A place for a micro-batch. A pipeline has several under way.
  virtual std::unique_ptr<Slot> make_slot() const = 0;

  /// The pass forward, for evaluation with the losses. In training the batch's memory must stay as it is until the pass
  /// back.
  virtual void forward(const Batch& batch, Slot& slot, Purpose purpose) = 0;

  /// The pass back of what is in the slot: the losses, and gradients of their sum, which are written, or added, and
  /// announced one by one. Once for each pass forward, for training.
  virtual void backward(Slot& slot, const GradReady& grad_ready, const Pass& pass) = 0;

  /// The losses of the slot's batch as they will be: f64 [3] on the model's device, as BatchResult. Valid until the
  /// next pass.
  virtual Tensor sums(const Slot& slot) const = 0;
  /// The same; waits until they are computed.
  BatchResult result(const Slot& slot);

  /// The slot of forward_backward() and evaluate().
  virtual Slot& own_slot() = 0;

  /// Both passes of one batch.
  BatchResult forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass = {});

  /// The pass forward of one batch.
  BatchResult evaluate(const Batch& batch);

  /// Bytes of activations and scratch memory of the largest pass so far: the memory of a run beside values, gradients
  /// and the optimizer's state.
  virtual std::size_t activation_bytes() const = 0;
};

/// Elements of all parameters together, and of those that are trained.
std::int64_t value_elements(const Model& model);
std::int64_t gradient_elements(const Model& model);

/// Divides the storage among the parameters, for bind(). Errors: ModelError if it has another size, lies elsewhere, or
/// is a null pointer.
void bind_parameters(std::span<Parameter> parameters, Device device, const Tensor& values, const Tensor& gradients);

/// Errors: ModelError for a parameter without storage for its gradient.
void check_gradient(const Parameter& parameter);

/// The elements of a parameter that this rank updates: all, none of a buffer, or its shard with ZeRO-1 (Rajbhandari et
/// al. 2020, arXiv:1910.02054).
struct Shard {
  std::size_t first = 0;
  std::size_t count = 0;
  bool split = false;  ///< other ranks update the rest
};

/// The shard's elements, in one dimension.
Tensor part_of(const Tensor& tensor, const Shard& shard);

/// A rank that updates everything.
std::vector<Shard> whole_shards(std::span<const Parameter> parameters);

}  // namespace kolo::models

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <kolo/memory.h>
#include <kolo/session.h>

#include "models/compute/precision.h"
#include "models/model/model.h"
#include "models/optim/optimizer.h"

namespace kolo {

/// One rank's share of a training step.
struct StepWork {
  /// The next micro-batch, which may have no examples; called micro_batches times.
  std::function<models::Batch()> next;
  std::int64_t micro_batches = 1;
  float loss_scale = 1;  ///< gradients are multiplied by it
  double targets = 1;    ///< over all ranks and micro-batches; divisor of 16-bit gradients before the sum
};

/// The outcome of one training step.
struct StepResult {
  double loss_sum = 0;         ///< over all targets of all ranks
  bool give_up = false;        ///< a rank asked to end the training, or failed
  std::exception_ptr problem;  ///< why this rank failed
};

/// How gradients are communicated.
struct DataParallelSettings {
  /// ZeRO-1: parameters with at least this many elements are reduce-scattered; each rank updates its shard.
  std::size_t shards_from = std::numeric_limits<std::size_t>::max();
  models::Precision wire = models::Precision::f32;
  bool reduces_in_passes = false;  ///< the model communicates in its passes: a rank whose pass fails leaves
};

/// A gradient as it travels.
struct GradientSize {
  std::int64_t bytes = 0;
  bool split = false;  ///< is reduce-scattered: shares no bucket with those that are not
};

/// Priorities for gradients, as `gradients`: the order in which the next pass needs the parameters. The one that it
/// needs first has 0, the others less, and all that fill a bucket have that of the first needed among them: for tensors
/// of different priorities share no bucket. So as many buckets run as without priorities.
///
/// order         of their submission, which is the reverse of the order of need: Model::backward_order()
/// fusion_bytes  Config::fusion_bytes
std::vector<int> gradient_priorities(std::span<const std::size_t> order, std::span<const GradientSize> gradients,
                                     std::int64_t fusion_bytes);

/// Data-parallel training: every rank holds all parameters and processes its share of each step's examples. Gradients
/// are summed over the ranks while the backward pass computes others. Of several micro-batches only the last
/// communicates.
///
/// With ZeRO-1 a step sums this rank's shards only, and share_values() follows their update. It communicates as many
/// bytes as an all_reduce, and divides the optimizer's computation and state among the ranks.
///
/// All member functions except the constructor, shards(), gradient_scale() and wait_seconds() are collective. One
/// thread at a time.
class DataParallel {
 public:
  /// Called with a parameter's index once its gradient, or this rank's shard of it, is the sum over all ranks.
  using Summed = std::function<void(std::size_t index)>;

  /// model  bound to its storage; it and the session must outlive this
  /// Errors: models::ModelError if there is no memory for gradients in 16 bits.
  DataParallel(Session& session, models::Model& model, const DataParallelSettings& settings = {});

  /// Broadcasts the parameters' values from rank 0. Errors: Error.
  void broadcast_parameters();

  /// Passes forward and back over this rank's share of a step, sums the gradients over the ranks and announces each
  /// through `summed`. Multiplied by gradient_scale(targets) and divided by the loss scale they are those of the mean
  /// loss.
  ///
  /// give_up  asks every rank to end the training after this step
  /// Errors: Error if a sum fails; exceptions of `summed`. An exception of `next` or of the model is in the result:
  /// this rank still takes part, and all ranks give up. An exception of a model that reduces in its passes is rethrown:
  /// the session must then be left, and the other ranks get an Error.
  StepResult step(const StepWork& work, bool give_up, const Summed& summed);

  /// The same for a step of one batch.
  StepResult step(const models::Batch& batch, bool give_up, const Summed& summed);

  /// The shard that this rank updates, for each parameter.
  const std::vector<models::Shard>& shards() const { return shards_; }

  /// The sum of a number over all ranks. Errors: Error.
  double sum(double value);

  /// Gathers the values of all shards on every rank. Errors: Error.
  void share_values();

  /// Gathers the optimizer's state of all shards on rank 0. Errors: Error.
  void collect_state(models::Optimizer& optimizer);

  /// Seconds that this rank spent in wait() since its last step began: exposed communication.
  double wait_seconds() const { return wait_seconds_; }

  /// The factor that summed gradients must be multiplied by: 1/targets, or 1 if they were divided before the sum.
  double gradient_scale(double targets) const { return wire() ? 1 : 1 / targets; }

 private:
  bool wire() const { return settings_.wire != models::Precision::f32; }
  void share_out(std::size_t elements);
  std::vector<int> priorities() const;
  double passes(const StepWork& work, StepResult& result);
  models::Batch next_batch(const StepWork& work, StepResult& result);
  void submit(std::size_t index, const StepWork& work);
  void submit_what_is_missing(const StepWork& work);
  void unpack(std::size_t index);
  void wait(Handle& handle);
  void wait_for_all();

  struct Names {
    TensorId value;
    TensorId gradient;
    TensorId shard;
  };

  Session* session_;
  models::Model* model_;
  DataParallelSettings settings_;
  std::vector<Names> names_;  // as the parameters
  std::vector<models::Shard> shards_;
  std::vector<int> priorities_;  // of the gradients
  Memory wire_memory_;
  std::vector<std::span<std::uint16_t>> wires_;  // as the parameters, in wire_memory_; empty if gradients travel as f32
  TensorId totals_name_;
  TensorId sum_name_;
  std::array<double, 2> totals_{};  // loss_sum and give_up, on their way with the gradients
  double wait_seconds_ = 0;
  std::vector<std::size_t> order_;  // in which this step's gradients were submitted
  // In a step as order_; the last member, so that operations end before their memory does.
  std::vector<Handle> handles_;
};

}  // namespace kolo

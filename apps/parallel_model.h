#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <kolo/data_parallel.h>
#include <kolo/session.h>

#include "models/compute/compute.h"
#include "models/compute/precision.h"
#include "models/model/model.h"
#include "models/optim/optimizer.h"

namespace kolo {

/// Whether the oldest part that this rank has begun to write of a checkpoint is on disk, or lost: 1 or 0. Over all
/// ranks: how many of them say so.
struct WrittenParts {
  double on_disk = 0;
  double lost = 0;
};

/// One rank's share of a training step.
struct StepWork {
  /// The next micro-batch, which may have no examples; called micro_batches times.
  std::function<models::Batch()> next;
  std::int64_t micro_batches = 1;
  float loss_scale = 1;  ///< gradients are multiplied by it
  double targets = 1;    ///< expected over all ranks and micro-batches; divisor of 16-bit gradients before the sum
  bool stops = false;    ///< this rank was asked to end the training after this step, as if there were no more
  bool stores = false;   ///< this rank was asked for a checkpoint
  WrittenParts written{};
};

/// The outcome of one training step.
struct StepResult {
  double loss_sum = 0;   ///< over all targets of all ranks; late: of the step before, unless late_loss() gave that
  double targets = 0;    ///< counted on all ranks
  bool give_up = false;  ///< a rank asked to end the training, or failed
  bool stops = false;    ///< a rank was asked to, see StepWork
  bool stores = false;
  WrittenParts written;        ///< of all ranks
  std::exception_ptr problem;  ///< why this rank failed
  bool late = false;           ///< on a GPU, which computes the losses while the program goes on
};

/// Elements of the smallest parameter that is worth sharing out among ranks.
inline constexpr std::size_t least_sharded = 16 << 10;

/// How gradients are communicated.
struct ParallelSettings {
  /// ZeRO-1: parameters with at least this many elements are reduce-scattered; each rank updates its shard.
  std::size_t shards_from = std::numeric_limits<std::size_t>::max();
  models::Precision wire = models::Precision::f32;
  bool reduces_in_passes = false;  ///< the model communicates in its passes: a rank whose pass fails leaves
};

/// A model of models/ whose steps are those of all ranks: its passes over a rank's share, DataParallel for its
/// gradients and values, and the ranks' agreement to go on.
///
/// All member functions except the constructor, shards() and wait_seconds() are collective. One thread at a time.
class ParallelModel {
 public:
  /// Called with a parameter's index once its gradient, or this rank's shard of it, is the sum over all ranks.
  using Summed = std::function<void(std::size_t index)>;

  /// model  bound to its storage; it and the session must outlive this
  /// Errors: std::bad_alloc if there is no memory for gradients in 16 bits.
  ParallelModel(Session& session, models::Model& model, const ParallelSettings& settings = {});
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;
  ~ParallelModel();

  /// Broadcasts the parameters' values from rank 0. Errors: Error.
  void broadcast_parameters() { parallel_.broadcast(); }

  /// Passes forward and back over this rank's share of a step; the sums of the gradients begin to travel.
  ///
  /// give_up  asks every rank to end the training after this step
  /// Errors: Error. An exception of `next` or of the model is in the step's result: this rank still takes part, and all
  /// ranks give up. An exception of a model that reduces in its passes is rethrown: the session must then be left, and
  /// the other ranks get an Error.
  void begin_step(const StepWork& work, bool give_up);

  /// The factor that makes gradients of the mean loss of the sums that arrive, but for the loss scale. Behind
  /// begin_step(). Errors: Error.
  double gradient_scale() { return parallel_.gradient_scale(); }

  /// Announces each sum through `summed`, while those behind it arrive. Errors: Error if a sum fails; exceptions of
  /// `summed`.
  StepResult finish_step(const Summed& summed);

  /// The loss_sum of the last step, if it is late: waits until it is computed. Errors: Error.
  double late_loss();

  /// sum = numbers, over all ranks, both where the model computes: what it computed before is in them, and what it
  /// computes from now on finds the sum. Errors: Error.
  void sum(const Tensor& numbers, const Tensor& sum);

  /// The shard that this rank updates, for each parameter.
  const std::vector<models::Shard>& shards() const { return shards_; }

  /// This rank's shard of a parameter is updated: the others' are gathered while the program goes on. The next pass
  /// waits for them where it uses the parameter first.
  void updated(std::size_t index) { parallel_.updated(index); }
  /// Waits until all values are complete: to read them. Errors: Error.
  void complete_values() { parallel_.use_all(); }

  /// Seconds that this rank has spent waiting so far: exposed communication.
  double wait_seconds() const { return parallel_.wait_seconds() + wait_seconds_; }

 private:
  class GatheredValues;

  using Losses = std::vector<std::unique_ptr<models::Reading>>;

  double passes(const StepWork& work);
  static double sum_of(const Losses& losses);
  models::Batch next_batch(const StepWork& work);
  void fail();

  Session* session_;
  models::Model* model_;
  bool reduces_in_passes_;
  std::vector<models::Shard> shards_;
  TensorId totals_name_, sum_name_;
  // Loss_sum, who gives up, stops, stores, whose part is on disk, or lost; on their way with the gradients.
  std::array<double, 6> totals_{};
  StepResult result_;   // of the step under way
  double targets_ = 0;  // counted on this rank, and whether that was said
  bool counted_ = false;
  double wait_seconds_ = 0;
  DataParallel parallel_;
  models::ParameterStore* store_;  // the model's own
  bool on_gpu_;
  std::unique_ptr<GatheredValues> gathered_values_;
  Losses losses_;         // of the last step's micro-batches, on their way from the GPU
  Handle totals_handle_;  // last, so that it ends before its memory does
};

}  // namespace kolo

#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <kolo/group.h>
#include <kolo/memory.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {

class Session;

/// A parameter that is trained in data parallel. Its memory belongs to the program, which may be any framework.
struct TrainedTensor {
  std::string name;   ///< the same on every rank; unique
  Tensor value;       ///< floats of any type, on any device
  Tensor gradient{};  ///< as many floats as the value has, on its device; {}: none, the value is only broadcast
};

/// The elements of a parameter that this rank updates: all, or with ZeRO-1 its shard (Rajbhandari et al. 2020,
/// arXiv:1910.02054).
struct TensorShard {
  std::size_t first = 0;
  std::size_t count = 0;
  bool split = false;  ///< other ranks update the rest
};

/// All must be equal on every rank, except `allocate` and `adopts`.
struct DataParallelOptions {
  Group group{};                ///< the ranks that train together; matched by names
  std::string prefix{};         ///< of all names: two DataParallel of one session and group need different ones
  ReduceOp op = ReduceOp::sum;  ///< what becomes of gradients: sum, or average over the ranks
  /// bf16 or f16: the type in which gradients, then all f32, travel. A sum arrives divided by what was expected: see
  /// DataParallel::count(), by the number of ranks without it. gradient_scale() makes the mean of either.
  std::optional<DType> wire{};
  bool counts = false;               ///< steps say what they count: see DataParallel::count()
  std::vector<std::size_t> order{};  ///< in which gradients become ready, more or less; empty: from last to first
  /// Gradients with at least this many elements are reduce-scattered, and each rank updates its shard (ZeRO-1).
  std::size_t shards_from = std::numeric_limits<std::size_t>::max();
  /// The session adopts gradients, and values that are gathered, in the program's host memory, so that nothing of them
  /// is copied within a node; what it cannot adopt stays as it is. See Session::adopt(): their memory outlives the
  /// session, and no thread may write to it during the constructor; a child of fork() shares it.
  bool adopts = false;
  std::optional<double> timeout_seconds{};                             ///< of each operation
  std::function<Memory(std::size_t bytes, Device device)> allocate{};  ///< for the wire; empty: Session::allocate()
};

/// Data-parallel training: each rank computes gradients of its own examples, and they are summed over the ranks while
/// its backward pass still computes others. Knows tensors only.
///
///     kolo::DataParallel parallel(session, tensors, {.op = kolo::ReduceOp::average});
///     parallel.broadcast();
///     for (…) {                                                // a step
///       backward_pass([&](std::size_t i) { parallel.ready(i); });
///       parallel.finish();                                     // gradients are the averages
///       update_values();
///     }
///
/// Of gradients that are ready at the same time those go first which the next forward pass needs first. With ZeRO-1
/// `wait(i)` leaves the sum in this rank's shard only; the program updates that and calls `updated(i)`, which gathers
/// the others' shards while it goes on, and `use(i)` before it reads the value. That moves as many bytes as an
/// all_reduce, and divides the optimizer's computation and state among the ranks.
///
/// A step begins with the first count() or ready() and ends with finish(). One thread at a time. Everything else but
/// shards(), submitted() and wait_seconds() takes part in operations of all ranks of the group: they wait for a rank
/// that does not come, and fail as any operation does (Error; see Session). Wrong use throws Error{invalid_argument} at
/// once.
class DataParallel {
 public:
  /// Local; nothing is communicated. The session and the tensors' memory must outlive this.
  /// Errors: Error{invalid_argument} for tensors that do not fit; what `allocate` throws.
  DataParallel(Session& session, std::vector<TrainedTensor> tensors, DataParallelOptions options = {});
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) noexcept;
  /// As of handles: withdraws or waits for what is in flight. What a rank drops in the middle of a step may meet the
  /// next step of others under these names: let a barrier separate them.
  ~DataParallel();

  /// Copies all values of rank `root` of the group over those of the others. `stream`: wrote values on a GPU.
  void broadcast(int root = 0, void* stream = nullptr);

  /// Gradient accumulation: while it is true, ready() does nothing. Gradients add up in the program's memory, and the
  /// last pass of a step communicates their sums.
  void skip_sync(bool skip);

  /// What this rank's share of the step counts, such as targets that are no padding; before the step's first gradient
  /// is ready, and with DataParallelOptions::counts on every rank. The mean is that over what all ranks counted.
  ///
  /// expected  the sum over the ranks, as far as known, equal on all: gradients are divided by it before they are
  ///           rounded to 16 bits, so that neither they nor their sums overflow. 0: by the number of ranks
  void count(double mine, double expected = 0);

  /// Gradient `i` is final on this rank: it begins to travel, and must not be touched until wait(i). In any order.
  /// `stream`: the CUDA stream that wrote it.
  void ready(std::size_t i, void* stream = nullptr);
  /// The same for all gradients that are not ready yet, as they are: others may wait for them.
  void ready_rest(void* stream = nullptr);

  /// Returns when gradient `i`, or this rank's shard of it, is the sum (or average) over the ranks.
  void wait(std::size_t i);
  /// What is enqueued on `stream` from now on finds it; does not wait for the GPU. See Handle::wait(stream).
  void wait(std::size_t i, void* stream);

  /// Ends the step: ready_rest(), and wait() for all that was not waited for. Throws the first failure, once all are
  /// over: the next step can begin.
  void finish();
  void finish(void* stream);

  /// This step's gradients in the order in which they became ready.
  std::span<const std::size_t> submitted() const;

  /// What all ranks have counted in this step, or in the one that was finished; without `counts`, their number.
  /// Waits until every rank has a gradient ready. Errors: Error{invalid_argument} on all ranks if they expected
  /// different sums.
  double counted();
  /// The factor that makes the mean of a gradient that has arrived; 0 if nothing was counted. Waits as counted() does.
  double gradient_scale();

  /// For each tensor; rows_of_rank() of its elements if it is split.
  const std::vector<TensorShard>& shards() const;

  /// This rank's shard of value `i` is final: begins to gather the others', and the value must not be touched until
  /// use(i). Does nothing for one that is not split. `stream`: the CUDA stream that wrote it.
  void updated(std::size_t i, void* stream = nullptr);
  /// Returns when value `i` is complete on this rank; at once unless it is being gathered.
  void use(std::size_t i);
  void use(std::size_t i, void* stream);
  /// use() of all.
  void use_all();

  /// Seconds that this rank has spent waiting in these functions: exposed communication.
  double wait_seconds() const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kolo

#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/options.h>

#include "apps/torch/job.h"
#include "apps/torch/operation.h"

namespace kolo_torch {

using OperationPtr = std::shared_ptr<Operation>;
using Tensors = std::vector<at::Tensor>;

/// How values are combined: after they have been multiplied by `prescale`.
struct Reduction {
  kolo::ReduceOp op = kolo::ReduceOp::sum;
  double prescale = 1;
};
/// The same for values of a type: of bool, a sum is whether there is one. Throws c10::Error where there is no such
/// thing.
Reduction suited(Reduction reduction, at::ScalarType type, const char* operation);
/// The tensors of bool, and all others: sums of the two are different operations.
struct Kinds {
  Tensors others, bools;
  bool are_mixed() const { return !others.empty() && !bools.empty(); }
};
Kinds kinds_of(const Tensors& tensors);

/// The collectives of an ordered group of kolo's on tensors of torch's. Knows neither c10d nor Python.
///
/// Every function starts an operation and returns at once, but for monitored_barrier(), and where the caller `waits`
/// for it next: then it may return when the operation is done, since nobody else need see to it meanwhile. Those of an
/// operation are in memory of the host, or all on this rank's GPU, where it runs behind the current stream. Tensors may
/// be strided; lists have a block for each rank, and blocks may have different sizes. An operation fails when it has
/// been in flight for `seconds`; 0: never. Roots and peers are ranks of the group.
///
/// Throws c10::Error for arguments that cannot work, and kolo::Error as kolo::Session does. Call it from one thread at
/// a time, or otherwise in one order on all ranks.
class Collectives {
 public:
  Collectives(std::shared_ptr<Job> job, kolo::Group group) : job_(std::move(job)), group_(std::move(group)) {}

  int rank() const { return group_.info()->rank; }
  int size() const { return group_.info()->size(); }
  const kolo::Group& group() const { return group_; }
  const std::shared_ptr<Job>& job() const { return job_; }

  OperationPtr all_reduce(const Tensors& tensors, Reduction reduction, double seconds, bool waits = false);
  /// The sum of sparse tensors in coordinates, in host memory.
  OperationPtr all_reduce_sparse(const at::Tensor& tensor, double seconds);
  OperationPtr reduce(const at::Tensor& tensor, int root, Reduction reduction, double seconds);
  OperationPtr broadcast(const Tensors& tensors, int root, double seconds, bool waits = false);

  OperationPtr all_gather(const Tensors& outputs, const at::Tensor& input, double seconds);
  /// outputs[i]: the blocks inputs[i] of all ranks, one after the other.
  OperationPtr all_gather_joined(const Tensors& outputs, const Tensors& inputs, double seconds, bool waits = false);
  /// `outputs`: on the root; elsewhere ignored.
  OperationPtr gather(const Tensors& outputs, const at::Tensor& input, int root, double seconds);
  /// `output`: on the root; elsewhere ignored.
  OperationPtr gather_joined(const at::Tensor& output, const at::Tensor& input, int root, double seconds);
  /// `inputs`: on the root, of one size; elsewhere ignored.
  OperationPtr scatter(const at::Tensor& output, const Tensors& inputs, int root, double seconds);
  OperationPtr reduce_scatter(const at::Tensor& output, const Tensors& inputs, Reduction reduction, double seconds);
  /// inputs[i]: the blocks for all ranks, one after the other.
  OperationPtr reduce_scatter_joined(const Tensors& outputs, const Tensors& inputs, Reduction reduction, double seconds,
                                     bool waits = false);
  OperationPtr all_to_all(const Tensors& outputs, const Tensors& inputs, double seconds);
  /// `from`, `to`: numbers of rows from and to each rank; empty: equal blocks.
  OperationPtr all_to_all_joined(const at::Tensor& output, const at::Tensor& input, std::span<const std::int64_t> from,
                                 std::span<const std::int64_t> to, double seconds);
  OperationPtr barrier(double seconds, bool waits = false);

  OperationPtr send(const at::Tensor& tensor, int to, int tag, double seconds);
  OperationPtr receive(const at::Tensor& tensor, int from, int tag, double seconds);
  /// `source` receives the rank it came from.
  OperationPtr receive_any(const at::Tensor& tensor, int tag, std::shared_ptr<int> source, double seconds);

  /// Returns when all ranks have called it. Throws kolo::Error{stalled}: on rank 0 it names the first rank that has not
  /// come within `seconds`, or all of them. No seconds: has timed out.
  void monitored_barrier(double seconds, bool all_ranks);

  /// This rank uses the group no more; waits for nobody. Idempotent.
  void leave();
  /// The same; what is in flight fails, here and, but for sends and receives, on other ranks. Idempotent.
  void abort();
  /// Whether it has, or its job has been left.
  bool left() const { return left_ || job_->abandoned(); }

  /// One that is done when all of these are.
  OperationPtr together(std::vector<OperationPtr> operations);

 private:
  struct Joined;
  OperationPtr start(kolo::Handle handle, Tensors tensors, std::function<void()> finish = {});
  OperationPtr run(const std::function<void()>& call, std::function<void()> finish = {});
  /// Whether who waits for an operation on these may as well call it: it is one, in host memory.
  static bool can_be_called(const Tensors& tensors) { return tensors.size() == 1 && tensors[0].is_cpu(); }
  Joined joined(const Tensors& blocks, bool are_read);
  kolo::PairOptions message(const at::Tensor& tensor, int tag, double seconds) const;
  at::Tensor scratch(std::int64_t elements, const at::Tensor& like);
  OperationPtr reduce_blocks(const at::Tensor& output, const Tensors& inputs, Reduction reduction, double seconds);
  /// Throws kolo::Error{closed} once the group, or the job, has been left.
  std::shared_ptr<kolo::Session> session() const { return left_ ? Job::closed() : job_->session(); }

  const std::shared_ptr<Job> job_;
  const kolo::Group group_;
  std::atomic<bool> left_{false};
};

}  // namespace kolo_torch

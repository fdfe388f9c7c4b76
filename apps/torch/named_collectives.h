#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/group.h>
#include <kolo/op.h>

#include "apps/torch/collectives.h"
#include "apps/torch/job.h"
#include "apps/torch/operation.h"

namespace kolo_torch {

/// An operation in flight that was matched by its name, and its results. Thread-safe.
class NamedOperation final {
 public:
  struct Results {
    Tensors outputs;
    kolo::BlockRows rows;  ///< all_to_all: those received from each rank
  };
  /// `follower`: an operation that begins when the first one is done; null if that has failed.
  NamedOperation(OperationPtr operation, std::shared_ptr<Results> results,
                 std::shared_future<OperationPtr> follower = {});

  bool done();
  /// Throws kolo::Error if it has failed.
  void wait();
  /// Once it is done.
  const Results& results() const { return *results_; }

 private:
  const OperationPtr operation_;
  const std::shared_ptr<Results> results_;
  const std::shared_future<OperationPtr> follower_;
};
using NamedOperationPtr = std::shared_ptr<NamedOperation>;

/// The collectives of Horovod's API, on tensors in host memory: matched by name, in any order. Knows neither c10d nor
/// Python.
///
/// group    members only; the default is all ranks. Roots are ranks of the group
/// name     unique among those in flight: else kolo::Error{in_flight}, and nothing is submitted. Operations of
/// different
///          kinds may have the same name
/// names    of the tensors of a group, which are agreed on, run and fail together; empty: there is one tensor
///
/// Every function starts an operation and returns at once. What cannot work fails on every rank of the group alike;
/// what cannot even be submitted (a function has thrown) does so by refuse(). While ranks have joined, only reductions
/// and barriers work; an average divides by the size of the group.
class NamedCollectives {
 public:
  explicit NamedCollectives(std::shared_ptr<Job> job) : job_(std::move(job)) {}

  std::shared_ptr<kolo::Session> session() const { return job_->session(); }
  const std::shared_ptr<Job>& job() const { return job_; }

  struct Scales {
    double before = 1, after = 1;
  };
  /// Each output may be its input.
  NamedOperationPtr all_reduce(const kolo::Group& group, const std::string& name, const std::vector<std::string>& names,
                               const Tensors& inputs, const Tensors& outputs, kolo::ReduceOp op, Scales scales);
  /// The rows (first dimension) of all ranks, in their order.
  NamedOperationPtr all_gather(const kolo::Group& group, const std::string& name, const at::Tensor& input);
  NamedOperationPtr grouped_all_gather(const kolo::Group& group, const std::string& name,
                                       const std::vector<std::string>& names, const Tensors& inputs);
  /// In place.
  NamedOperationPtr broadcast(const kolo::Group& group, const std::string& name, const at::Tensor& tensor, int root);
  /// This rank's rows of the result: the first ranks have one more where they are not equal.
  NamedOperationPtr reduce_scatter(const kolo::Group& group, const std::string& name,
                                   const std::vector<std::string>& names, const Tensors& inputs, kolo::ReduceOp op,
                                   Scales scales);
  /// `splits`: rows for each rank; empty: equal blocks.
  NamedOperationPtr all_to_all(const kolo::Group& group, const std::string& name, const at::Tensor& input,
                               const std::vector<std::int64_t>& splits);
  NamedOperationPtr barrier(const kolo::Group& group);
  /// In place of the operation of this kind and name: it fails on every rank. `grouped`: of several tensors.
  NamedOperationPtr refuse(const kolo::Group& group, kolo::OpKind kind, bool grouped, const std::string& name,
                           const kolo::Failure& why);

 private:
  std::function<void()> all_attend(const kolo::Group& group, const std::string& operation,
                                   std::vector<kolo::Handle>& handles);
  NamedOperationPtr start(std::vector<kolo::Handle> handles, Tensors used,
                          std::shared_ptr<NamedOperation::Results> results, std::function<void()> finish = {});
  OperationPtr refused(const kolo::Group& group, kolo::OpKind kind, const std::vector<std::string>& names,
                       const kolo::Failure& why);
  int size(const kolo::Group& group) const;
  int rank(const kolo::Group& group) const;

  const std::shared_ptr<Job> job_;
};

}  // namespace kolo_torch

#pragma once

#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/torch/c10d_news.h"
#include "apps/torch/c10d_work.h"
#include "apps/torch/collectives.h"

namespace kolo_torch {

/// The settings of a process group. What torch reads in those of its own gloo, DDP's logger does, is where it looks for
/// it: programs may know kolo by that name.
struct C10dOptions final : c10d::Backend::Options {
  using Options::Options;
  c10::intrusive_ptr<Options> clone() const {  // overrides since torch 2.14
    return c10::make_intrusive<C10dOptions>(*this);
  }

  std::vector<std::shared_ptr<void>> devices;
  int threads = 2;  // as gloo has, which programs compare it with
};

/// c10d's interface on Collectives: translates arguments, and nothing else.
///
/// A default process group makes a session of all ranks; groups whose ranks ascend are groups of that session, others
/// make one of their own, and so do those that are made when a rank is gone. Throws std::runtime_error that describes
/// what kolo throws. Operations are called by one thread at a time, everything else by any.
class C10dBackend final : public c10d::Backend {
 public:
  /// What a process group is made of.
  struct About {
    std::string name;  ///< by which programs know the backend
    c10::intrusive_ptr<c10d::Store> store;
    int rank = 0, size = 1;  ///< of this process in the group
    std::chrono::milliseconds timeout{};
    std::string group_name{};
    std::vector<int> ranks{};  ///< of the group's members in the parent, in order; empty: a default group
  };
  /// `parent`: of the group that the members belong to, if it is kolo's. Collective over the members. Throws
  /// kolo::Error.
  C10dBackend(const About& about, const Collectives* parent);
  ~C10dBackend() override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  using Blocks = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Blocks& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Blocks& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Blocks& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Blocks& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Blocks& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Blocks>& outputs, Blocks& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Blocks>& outputs, Blocks& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Blocks& outputs, Blocks& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Blocks>& outputs, Blocks& inputs, const c10d::GatherOptions& options) override;
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& options);  // overrides since torch 2.14
  WorkPtr scatter(Blocks& outputs, std::vector<Blocks>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Blocks& outputs, std::vector<Blocks>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Blocks& outputs, Blocks& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Blocks& outputs, Blocks& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Blocks& tensors, int to, int tag) override;
  WorkPtr recv(Blocks& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Blocks& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override;

  /// Leaves the group, and with the last group of a session the session; waits for nobody.
  void shutdown() override;
  /// Leaves the group, and fails what is in flight in it, here and where it needs this rank; other groups go on.
  void abort() override;
  /// How the first operation failed that somebody has asked.
  c10d::ErrorType getError() override { return news_->error(); }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  bool supportsCompletionHooks() const override {
    return true;
  }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override {
    news_->add(id, [hook = std::move(hook)](std::uint64_t key) { hook({.completionKey = key}); });
  }
  void unregisterCompletionHook(std::int64_t id) override {
    news_->remove(id);
  }
#endif

  const std::shared_ptr<Collectives>& collectives() const {
    return collectives_;
  }

  /// What a child of this group is made of; `ranks`: of this group.
  About child(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
              std::chrono::milliseconds timeout, const std::string& group_name) const;

 private:
  struct Call;
  template <class Asked>
  bool waits(const Asked& options) const;
  template <class Start>
  WorkPtr start(Call call, Start&& start_operation);
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;

  const std::shared_ptr<void> unused_;  // first, since the options are second where torch looks for them
  const c10::intrusive_ptr<C10dOptions> options_;
  const std::string name_;
  const std::shared_ptr<Collectives> collectives_;
  const std::shared_ptr<C10dNews> news_ = std::make_shared<C10dNews>();
  std::atomic<std::uint64_t> sequence_{0};
  std::mutex coalescing_mutex_;
  std::atomic<bool> is_coalescing_{false};
  std::vector<OperationPtr> coalesced_;
};

}  // namespace kolo_torch

#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "apps/torch/c10d_backend.h"

namespace kolo_torch {

/// A group whose ranks are on several nodes between which kolo carries tensors on GPUs, and no others: those in host
/// memory go through another backend, and how that fails is told with what kolo knows of the ranks. Operations are
/// called by one thread at a time.
class C10dOverNodes final : public c10d::Backend {
 public:
  using Kolo = c10::intrusive_ptr<C10dBackend>;
  using Other = c10::intrusive_ptr<c10d::Backend>;
  C10dOverNodes(Kolo gpus, Other hosts);

  const std::string getBackendName() const override { return gpus_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  using Blocks = C10dBackend::Blocks;
  using Lists = std::vector<Blocks>;
  using WorkPtr = C10dBackend::WorkPtr;
  WorkPtr broadcast(Blocks& all, const c10d::BroadcastOptions& how) override;
  WorkPtr allreduce(Blocks& all, const c10d::AllreduceOptions& how) override;
  WorkPtr allreduce_sparse(Blocks& all, const c10d::AllreduceOptions& how) override;
  WorkPtr allreduce_coalesced(Blocks& all, const c10d::AllreduceCoalescedOptions& how) override;
  WorkPtr reduce(Blocks& all, const c10d::ReduceOptions& how) override;
  WorkPtr allgather(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) override;
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& how) override;
  WorkPtr allgather_coalesced(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) override;
  WorkPtr allgather_into_tensor_coalesced(Blocks& out, Blocks& in, const c10d::AllgatherOptions& how) override;
  WorkPtr gather(Lists& out, Blocks& in, const c10d::GatherOptions& how) override;
  WorkPtr gather_into_tensor(at::Tensor& out, at::Tensor& in,
                             const c10d::GatherOptions& how) {  // overrides since torch 2.14
    return gpus_->gather_into_tensor(out, in, how);
  }
  WorkPtr scatter(Blocks& out, Lists& in, const c10d::ScatterOptions& how) override;
  WorkPtr reduce_scatter(Blocks& out, Lists& in, const c10d::ReduceScatterOptions& how) override;
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& how) override;
  WorkPtr reduce_scatter_tensor_coalesced(Blocks& out, Blocks& in, const c10d::ReduceScatterOptions& how) override;
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& from, std::vector<std::int64_t>& to,
                        const c10d::AllToAllOptions& how) override;
  WorkPtr alltoall(Blocks& out, Blocks& in, const c10d::AllToAllOptions& how) override;
  WorkPtr send(Blocks& all, int to, int tag) override;
  WorkPtr recv(Blocks& all, int from, int tag) override;
  WorkPtr recvAnysource(Blocks& all, int tag) override;
  /// Of kolo and of the other backend, which waits for its own operations.
  WorkPtr barrier(const c10d::BarrierOptions& how) override;
  void monitoredBarrier(const c10d::BarrierOptions& how, bool all_ranks) override {
    hosts_->monitoredBarrier(how, all_ranks);
  }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override {
    return gpus_->allocateTensor(elements, options);
  }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  bool supportsSplitting() const override {
    return hosts_->supportsSplitting();
  }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override {
    const auto made = c10::dynamic_intrusive_pointer_cast<C10dBackend>(gpus_->split(store, ranks, options));
    if (!made || !made->collectives()->group().info()->negotiated) return made;
    const auto own = hosts_->getBackendOptions()->clone();
    if (options) own->timeout = options->timeout;
    if (options) own->group_name = options->group_name;
    const auto elsewhere = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
    return c10::make_intrusive<C10dOverNodes>(made, hosts_->split(elsewhere, ranks, own));
  }
#endif

  void shutdown() override;
  void abort() override;
  c10d::ErrorType getError() override {
    return gpus_->getError();
  }

 private:
  class HostWork;
  class Causes;
  template <class Call>
  WorkPtr run(const Blocks& tensors, Call&& call);
  template <class Call>
  WorkPtr collective(const Blocks& tensors, Call&& call);

  const std::shared_ptr<void> unused_;  // first, since the options are second where torch looks for them
  const c10::intrusive_ptr<Options> options_;
  const Kolo gpus_;
  const Other hosts_;
  const std::shared_ptr<Causes> causes_;
  std::atomic<std::uint64_t> sequence_{0};
  std::mutex coalescing_mutex_;
  bool is_coalescing_ = false;
  std::vector<WorkPtr> coalesced_;  // on hosts
};

}  // namespace kolo_torch

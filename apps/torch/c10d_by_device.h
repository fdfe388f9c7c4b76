#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>
#include <vector>

namespace kolo_torch {

/// Two backends of one group: `gpus` for tensors on GPUs and for what has none, `hosts` for tensors in host memory. For
/// ranks on several nodes whose GPUs reach each other and whose hosts do not. Cannot be split.
class C10dByDevice final : public c10d::Backend {
 public:
  using Backends = c10::intrusive_ptr<c10d::Backend>;
  C10dByDevice(Backends gpus, Backends hosts)
      : Backend(gpus->getRank(), gpus->getSize()), gpus_(std::move(gpus)), hosts_(std::move(hosts)) {
    init();
  }

  const std::string getBackendName() const override { return gpus_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gpus_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    gpus_->setTimeout(timeout);
    hosts_->setTimeout(timeout);
  }
  std::uint64_t getSequenceNumberForGroup() override { return gpus_->getSequenceNumberForGroup(); }

  using Blocks = std::vector<at::Tensor>;
  using Lists = std::vector<Blocks>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Blocks& all, const c10d::BroadcastOptions& how) override { return of(all).broadcast(all, how); }
  WorkPtr allreduce(Blocks& all, const c10d::AllreduceOptions& how) override { return of(all).allreduce(all, how); }
  WorkPtr allreduce_sparse(Blocks& all, const c10d::AllreduceOptions& how) override {
    return of(all).allreduce_sparse(all, how);
  }
  WorkPtr allreduce_coalesced(Blocks& all, const c10d::AllreduceCoalescedOptions& how) override {
    return of(all).allreduce_coalesced(all, how);
  }
  WorkPtr reduce(Blocks& all, const c10d::ReduceOptions& how) override { return of(all).reduce(all, how); }
  WorkPtr allgather(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) override {
    return of(in).allgather(out, in, how);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& how) override {
    return of({in})._allgather_base(out, in, how);
  }
  WorkPtr allgather_coalesced(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) override {
    return of(in).allgather_coalesced(out, in, how);
  }
  WorkPtr allgather_into_tensor_coalesced(Blocks& out, Blocks& in, const c10d::AllgatherOptions& how) override {
    return of(in).allgather_into_tensor_coalesced(out, in, how);
  }
  WorkPtr gather(Lists& out, Blocks& in, const c10d::GatherOptions& how) override {
    return of(in).gather(out, in, how);
  }
  WorkPtr scatter(Blocks& out, Lists& in, const c10d::ScatterOptions& how) override {
    return of(out).scatter(out, in, how);
  }
  WorkPtr reduce_scatter(Blocks& out, Lists& in, const c10d::ReduceScatterOptions& how) override {
    return of(out).reduce_scatter(out, in, how);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& how) override {
    return of({in})._reduce_scatter_base(out, in, how);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Blocks& out, Blocks& in, const c10d::ReduceScatterOptions& how) override {
    return of(in).reduce_scatter_tensor_coalesced(out, in, how);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& from, std::vector<std::int64_t>& to,
                        const c10d::AllToAllOptions& how) override {
    return of({in}).alltoall_base(out, in, from, to, how);
  }
  WorkPtr alltoall(Blocks& out, Blocks& in, const c10d::AllToAllOptions& how) override {
    return of(in).alltoall(out, in, how);
  }
  WorkPtr send(Blocks& all, int to, int tag) override { return of(all).send(all, to, tag); }
  WorkPtr recv(Blocks& all, int from, int tag) override { return of(all).recv(all, from, tag); }
  WorkPtr recvAnysource(Blocks& all, int tag) override { return of(all).recvAnysource(all, tag); }
  WorkPtr barrier(const c10d::BarrierOptions& how) override { return gpus_->barrier(how); }
  void monitoredBarrier(const c10d::BarrierOptions& how, bool all_ranks) override {
    gpus_->monitoredBarrier(how, all_ranks);
  }

  bool supportsCoalescing() const override { return gpus_->supportsCoalescing(); }
  void startCoalescing() override { gpus_->startCoalescing(); }
  WorkPtr endCoalescing() override { return gpus_->endCoalescing(); }
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return gpus_->supportsTensorAlloc(index); }
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override {
    return gpus_->allocateTensor(elements, options);
  }

  void shutdown() override {
    gpus_->shutdown();
    hosts_->shutdown();
  }
  void abort() override {
    gpus_->abort();
    hosts_->abort();
  }
  c10d::ErrorType getError() override { return gpus_->getError(); }

 private:
  c10d::Backend& of(const Blocks& tensors) const {
    return tensors.empty() || !tensors.front().is_cpu() ? *gpus_ : *hosts_;
  }

  const Backends gpus_, hosts_;
};

}  // namespace kolo_torch

#include "apps/torch/c10d_over_nodes.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace kolo_torch {
namespace {

using Works = std::vector<C10dBackend::WorkPtr>;

/// How another backend has failed, with the name of a rank that is gone: kolo may hear of that a little later.
std::string with_cause(const std::string& text, const Job& job) {
  using namespace std::chrono_literals;
  try {
    for (int look = 0; look < 50 && !job.has_lost_a_rank(); ++look) std::this_thread::sleep_for(10ms);
    if (job.has_lost_a_rank()) job.session()->barrier();
  } catch (const kolo::Error& error) {
    return c10::str("kolo: ", error.what(), "; ", text);
  }
  return text;
}

}  // namespace

/// What other backends do, of which all must end.
class C10dOverNodes::HostWork final : public c10d::Work {
 public:
  HostWork(Works works, std::shared_ptr<Collectives> group) : works_(std::move(works)), group_(std::move(group)) {}

  bool isCompleted() override {
    return std::ranges::all_of(works_, [](const WorkPtr& one) { return one->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(works_, [](const WorkPtr& one) { return one->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const WorkPtr& one : works_) {
      if (auto failed = one->exception()) return failed;
    }
    return nullptr;
  }
  int sourceRank() const override { return works_.front()->sourceRank(); }
  std::vector<at::Tensor> result() override { return works_.front()->result(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      return std::ranges::all_of(works_, [&](const WorkPtr& one) { return one->wait(timeout); });
    } catch (const std::exception& error) {
      throw std::runtime_error(with_cause(error.what(), *group_->job()));
    }
  }
  void abort() override {
    for (const WorkPtr& one : works_) one->abort();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = works_.front()->getFuture();
    return future->then(
        [group = group_](c10::ivalue::Future& done) {
          if (done.hasError()) throw std::runtime_error(with_cause(done.tryRetrieveErrorMessage(), *group->job()));
          return done.value();
        },
        future->elementType());
  }
  std::uint64_t getSequencenumber() const override { return works_.front()->getSequencenumber(); }

 private:
  const Works works_;  // one at least
  const std::shared_ptr<Collectives> group_;
};

C10dOverNodes::C10dOverNodes(Kolo gpus, Other hosts)
    : Backend(gpus->getRank(), gpus->getSize()),
      options_(gpus->getBackendOptions()),
      gpus_(std::move(gpus)),
      hosts_(std::move(hosts)) {
  init();
}

void C10dOverNodes::setTimeout(std::chrono::milliseconds timeout) {
  gpus_->setTimeout(timeout);
  hosts_->setTimeout(timeout);
}

template <class Call>
C10dOverNodes::WorkPtr C10dOverNodes::run(const Blocks& tensors, Call&& call) {
  ++sequence_;
  if (tensors.empty() || !tensors.front().is_cpu()) return call(*gpus_);
  const std::shared_ptr<Collectives>& group = gpus_->collectives();
  const WorkPtr work = [&] {
    try {
      return call(*hosts_);
    } catch (const std::runtime_error& error) {  // not of wrong arguments
      throw std::runtime_error(with_cause(error.what(), *group->job()));
    }
  }();
  const std::lock_guard lock(coalescing_mutex_);
  if (is_coalescing_) coalesced_.push_back(work);
  return c10::make_intrusive<HostWork>(Works{work}, group);
}

void C10dOverNodes::startCoalescing() {
  gpus_->startCoalescing();
  const std::lock_guard lock(coalescing_mutex_);
  coalesced_.clear();
  is_coalescing_ = true;
}

C10dOverNodes::WorkPtr C10dOverNodes::endCoalescing() {
  const WorkPtr on_gpus = gpus_->endCoalescing();
  const std::lock_guard lock(coalescing_mutex_);
  is_coalescing_ = false;
  if (coalesced_.empty()) return on_gpus;
  coalesced_.push_back(on_gpus);
  return c10::make_intrusive<HostWork>(std::exchange(coalesced_, {}), gpus_->collectives());
}

void C10dOverNodes::shutdown() {
  gpus_->shutdown();
  hosts_->shutdown();
}

void C10dOverNodes::abort() {
  gpus_->abort();
  hosts_->abort();
}

C10dOverNodes::WorkPtr C10dOverNodes::broadcast(Blocks& all, const c10d::BroadcastOptions& how) {
  return run(all, [&](c10d::Backend& by) { return by.broadcast(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allreduce(Blocks& all, const c10d::AllreduceOptions& how) {
  return run(all, [&](c10d::Backend& by) { return by.allreduce(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allreduce_sparse(Blocks& all, const c10d::AllreduceOptions& how) {
  return run(all, [&](c10d::Backend& by) { return by.allreduce_sparse(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allreduce_coalesced(Blocks& all, const c10d::AllreduceCoalescedOptions& how) {
  return run(all, [&](c10d::Backend& by) { return by.allreduce_coalesced(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::reduce(Blocks& all, const c10d::ReduceOptions& how) {
  return run(all, [&](c10d::Backend& by) { return by.reduce(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allgather(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) {
  return run(in, [&](c10d::Backend& by) { return by.allgather(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                      const c10d::AllgatherOptions& how) {
  return run({in}, [&](c10d::Backend& by) { return by._allgather_base(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allgather_coalesced(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) {
  return run(in, [&](c10d::Backend& by) { return by.allgather_coalesced(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allgather_into_tensor_coalesced(Blocks& out, Blocks& in,
                                                                      const c10d::AllgatherOptions& how) {
  return run(in, [&](c10d::Backend& by) { return by.allgather_into_tensor_coalesced(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::gather(Lists& out, Blocks& in, const c10d::GatherOptions& how) {
  return run(in, [&](c10d::Backend& by) { return by.gather(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::scatter(Blocks& out, Lists& in, const c10d::ScatterOptions& how) {
  return run(out, [&](c10d::Backend& by) { return by.scatter(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::reduce_scatter(Blocks& out, Lists& in, const c10d::ReduceScatterOptions& how) {
  return run(out, [&](c10d::Backend& by) { return by.reduce_scatter(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                           const c10d::ReduceScatterOptions& how) {
  return run({in}, [&](c10d::Backend& by) { return by._reduce_scatter_base(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::reduce_scatter_tensor_coalesced(Blocks& out, Blocks& in,
                                                                      const c10d::ReduceScatterOptions& how) {
  return run(in, [&](c10d::Backend& by) { return by.reduce_scatter_tensor_coalesced(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& from,
                                                    std::vector<std::int64_t>& to, const c10d::AllToAllOptions& how) {
  return run({in}, [&](c10d::Backend& by) { return by.alltoall_base(out, in, from, to, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::alltoall(Blocks& out, Blocks& in, const c10d::AllToAllOptions& how) {
  return run(in, [&](c10d::Backend& by) { return by.alltoall(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::send(Blocks& all, int to, int tag) {
  return run(all, [&](c10d::Backend& by) { return by.send(all, to, tag); });
}
C10dOverNodes::WorkPtr C10dOverNodes::recv(Blocks& all, int from, int tag) {
  return run(all, [&](c10d::Backend& by) { return by.recv(all, from, tag); });
}
C10dOverNodes::WorkPtr C10dOverNodes::recvAnysource(Blocks& all, int tag) {
  return run(all, [&](c10d::Backend& by) { return by.recvAnysource(all, tag); });
}

}  // namespace kolo_torch

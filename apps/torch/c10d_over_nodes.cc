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
constexpr std::size_t many_together = 64;  // of them those that are done are let go

}  // namespace

/// How other backends of a group fail, with the name of a rank that is gone. kolo may hear of that a little later than
/// they: the first time it is waited for.
class C10dOverNodes::Causes {
 public:
  explicit Causes(std::shared_ptr<Collectives> group) : group_(std::move(group)) {}

  std::string added_to(const std::string& text, bool waits) {
    using namespace std::chrono_literals;
    try {
      const auto session = group_->job()->session();
      if (waits && !has_waited_.exchange(true)) {
        for (int look = 0; look < 50 && session->stats().lost_ranks == 0; ++look) std::this_thread::sleep_for(10ms);
      }
      if (session->stats().lost_ranks > 0) session->barrier();  // fails with the world
    } catch (const kolo::Error& error) {
      return c10::str("kolo: ", error.what(), "; ", text);
    }
    return text;
  }

 private:
  const std::shared_ptr<Collectives> group_;
  std::atomic<bool> has_waited_{false};
};

/// What backends do, of which all must end.
class C10dOverNodes::HostWork final : public c10d::Work {
 public:
  HostWork(Works works, std::shared_ptr<Causes> causes) : works_(std::move(works)), causes_(std::move(causes)) {}

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
      throw std::runtime_error(causes_->added_to(error.what(), timeout == kNoTimeout));
    }
  }
  void abort() override {
    for (const WorkPtr& one : works_) one->abort();
  }
  /// With the first one's value.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto first = works_.front()->getFuture();
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> all(c10::FutureType::create(first->elementType()));
    for (const WorkPtr& one : works_) all.push_back(one->getFuture());
    return c10::collectAll(all)->then(
        [first, causes = causes_](c10::ivalue::Future& done) {
          if (done.hasError()) throw std::runtime_error(causes->added_to(done.tryRetrieveErrorMessage(), true));
          return first->value();
        },
        first->elementType());
  }
  std::uint64_t getSequencenumber() const override { return works_.front()->getSequencenumber(); }

 private:
  const Works works_;  // one at least
  const std::shared_ptr<Causes> causes_;
};

C10dOverNodes::C10dOverNodes(Kolo gpus, Other hosts)
    : Backend(gpus->getRank(), gpus->getSize()),
      options_(gpus->getBackendOptions()),
      gpus_(std::move(gpus)),
      hosts_(std::move(hosts)),
      causes_(std::make_shared<Causes>(gpus_->collectives())) {
  init();
}

void C10dOverNodes::setTimeout(std::chrono::milliseconds timeout) {
  gpus_->setTimeout(timeout);
  hosts_->setTimeout(timeout);
}

template <class Call>
C10dOverNodes::WorkPtr C10dOverNodes::run(const Blocks& tensors, Call&& call) {
  const bool on_hosts = !tensors.empty() && tensors.front().is_cpu();
  if (!on_hosts || gpus_->collectives()->left()) return call(*gpus_);
  const WorkPtr work = [&] {
    try {
      return call(*hosts_);
    } catch (const std::runtime_error& error) {  // not of wrong arguments
      throw std::runtime_error(causes_->added_to(error.what(), true));
    }
  }();
  const std::lock_guard lock(coalescing_mutex_);
  if (is_coalescing_) {
    if (coalesced_.size() >= many_together)
      std::erase_if(coalesced_, [](const WorkPtr& one) { return one->isCompleted(); });
    coalesced_.push_back(work);
  }
  return c10::make_intrusive<HostWork>(Works{work}, causes_);
}

/// One of those that all ranks call, which torch compares by their number.
template <class Call>
C10dOverNodes::WorkPtr C10dOverNodes::collective(const Blocks& tensors, Call&& call) {
  WorkPtr work = run(tensors, std::forward<Call>(call));
  ++sequence_;
  return work;
}

C10dOverNodes::WorkPtr C10dOverNodes::barrier(const c10d::BarrierOptions& how) {
  const WorkPtr work = gpus_->barrier(how);
  ++sequence_;
  return c10::make_intrusive<HostWork>(Works{work, hosts_->barrier(how)}, causes_);
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
  return c10::make_intrusive<HostWork>(std::exchange(coalesced_, {}), causes_);
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
  return collective(all, [&](c10d::Backend& by) { return by.broadcast(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allreduce(Blocks& all, const c10d::AllreduceOptions& how) {
  return collective(all, [&](c10d::Backend& by) { return by.allreduce(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allreduce_sparse(Blocks& all, const c10d::AllreduceOptions& how) {
  return collective(all, [&](c10d::Backend& by) { return by.allreduce_sparse(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allreduce_coalesced(Blocks& all, const c10d::AllreduceCoalescedOptions& how) {
  return collective(all, [&](c10d::Backend& by) { return by.allreduce_coalesced(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::reduce(Blocks& all, const c10d::ReduceOptions& how) {
  return collective(all, [&](c10d::Backend& by) { return by.reduce(all, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allgather(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) {
  return collective(in, [&](c10d::Backend& by) { return by.allgather(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                      const c10d::AllgatherOptions& how) {
  return collective({in}, [&](c10d::Backend& by) { return by._allgather_base(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allgather_coalesced(Lists& out, Blocks& in, const c10d::AllgatherOptions& how) {
  return collective(in, [&](c10d::Backend& by) { return by.allgather_coalesced(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::allgather_into_tensor_coalesced(Blocks& out, Blocks& in,
                                                                      const c10d::AllgatherOptions& how) {
  return collective(in, [&](c10d::Backend& by) { return by.allgather_into_tensor_coalesced(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::gather(Lists& out, Blocks& in, const c10d::GatherOptions& how) {
  return collective(in, [&](c10d::Backend& by) { return by.gather(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::scatter(Blocks& out, Lists& in, const c10d::ScatterOptions& how) {
  return collective(out, [&](c10d::Backend& by) { return by.scatter(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::reduce_scatter(Blocks& out, Lists& in, const c10d::ReduceScatterOptions& how) {
  return collective(out, [&](c10d::Backend& by) { return by.reduce_scatter(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                           const c10d::ReduceScatterOptions& how) {
  return collective({in}, [&](c10d::Backend& by) { return by._reduce_scatter_base(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::reduce_scatter_tensor_coalesced(Blocks& out, Blocks& in,
                                                                      const c10d::ReduceScatterOptions& how) {
  return collective(in, [&](c10d::Backend& by) { return by.reduce_scatter_tensor_coalesced(out, in, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& from,
                                                    std::vector<std::int64_t>& to, const c10d::AllToAllOptions& how) {
  return collective({in}, [&](c10d::Backend& by) { return by.alltoall_base(out, in, from, to, how); });
}
C10dOverNodes::WorkPtr C10dOverNodes::alltoall(Blocks& out, Blocks& in, const c10d::AllToAllOptions& how) {
  return collective(in, [&](c10d::Backend& by) { return by.alltoall(out, in, how); });
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

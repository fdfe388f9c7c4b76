#include <fmt/format.h>

#include <algorithm>

#include "bench/kolo_bench/measure/candidate.h"

namespace kolo::bench {
namespace {

class ThroughSession final : public Asynchronous {
 public:
  ThroughSession(Session& session, const Work& work, void* ready, const Group& group)
      : session_(session), work_(work), ready_(ready), group_(group) {
    for (std::size_t lane = 0; lane < work.lanes.size(); ++lane) {
      names_.push_back(work.lanes.size() == 1 ? work.name : fmt::format("{} #{}", work.name, lane));
      ids_.push_back(session.declare(names_.back()));
    }
  }

  std::string_view name() const override { return "kolo"; }
  std::string_view method() const override {
    const bool by_tag = work_.signature.kind == OpKind::send_recv && in_order();  // which statistics do not count
    return by_tag ? "" : session_.stats().method;
  }

  void start() override {
    for (std::size_t lane = 0; lane < ids_.size(); ++lane) {
      const Tensor &in = work_.lanes[lane].in, &out = work_.lanes[lane].out;
      if (work_.signature.kind == OpKind::send_recv) {
        in_order() ? exchange(in, out) : exchange(in, out, std::string_view(names_[lane]));
      } else {
        in_order() ? submit(in, out) : submit(in, out, ids_[lane]);
      }
    }
  }

  void finish() override {
    for (Handle& handle : handles_) handle.wait();
    handles_.clear();
  }

  bool done() override {
    return std::ranges::all_of(handles_, [](Handle& handle) { return handle.poll(); });
  }

 private:
  bool in_order() const { return group_.info() && group_.info()->order == Order::program; }

  // `key` is what names the operation, or, in an ordered group, nothing.

  void submit(const Tensor& in, const Tensor& out, auto... key) {
    const Signature& how = work_.signature;
    const Tensor at_root = how.root == session_.rank() ? out : Tensor{};
    switch (how.kind) {
      case OpKind::all_reduce:
        return put(session_.all_reduce_async(key..., in, out, {.op = how.op, .group = group_, .ready = ready_}));
      case OpKind::reduce:
        return put(session_.reduce_async(key..., in, at_root,
                                         {.op = how.op, .root = how.root, .group = group_, .ready = ready_}));
      case OpKind::broadcast:
        return put(session_.broadcast_async(key..., out, {.root = how.root, .group = group_, .ready = ready_}));
      case OpKind::all_gather:
        return put(session_.all_gather_async(key..., in, out, {.group = group_, .ready = ready_}));
      case OpKind::reduce_scatter:
        return put(session_.reduce_scatter_async(key..., in, out, {.op = how.op, .group = group_, .ready = ready_}));
      case OpKind::all_to_all:
        return put(session_.all_to_all_async(key..., in, out, {.group = group_, .ready = ready_}));
      case OpKind::gather:
        return put(session_.gather_async(key..., in, at_root, {.root = how.root, .group = group_, .ready = ready_}));
      default:
        return put(session_.scatter_async(key..., in, out, {.root = how.root, .group = group_, .ready = ready_}));
    }
  }
  void exchange(const Tensor& in, const Tensor& out, auto... key) {
    const int n = session_.size(), next = (session_.rank() + 1) % n, previous = (session_.rank() + n - 1) % n;
    const PairOptions options{.group = group_, .ready = ready_};
    put(session_.send_async(key..., in, next, options));
    put(session_.recv_async(key..., out, previous, options));
  }
  void put(Handle handle) { handles_.push_back(std::move(handle)); }

  Session& session_;
  Work work_;
  void* ready_;
  Group group_;
  std::vector<std::string> names_;
  std::vector<TensorId> ids_;
  std::vector<Handle> handles_;
};

}  // namespace

std::unique_ptr<Asynchronous> through_session(Session& session, const Work& work, void* ready, const Group& group) {
  return std::make_unique<ThroughSession>(session, work, ready, group);
}

}  // namespace kolo::bench

#include <fmt/format.h>

#include "bench/kolo_bench/measure/candidate.h"

namespace kolo::bench {
namespace {

class ThroughSession final : public Asynchronous {
 public:
  ThroughSession(Session& session, const Work& work, void* ready) : session_(session), work_(work), ready_(ready) {
    for (std::size_t lane = 0; lane < work.lanes.size(); ++lane) {
      names_.push_back(work.lanes.size() == 1 ? work.name : fmt::format("{} #{}", work.name, lane));
      ids_.push_back(session.declare(names_.back()));
    }
  }

  std::string_view name() const override { return "kolo"; }

  void start() override {
    for (std::size_t lane = 0; lane < ids_.size(); ++lane) submit(lane, work_.lanes[lane].in, work_.lanes[lane].out);
  }

  void finish() override {
    for (Handle& handle : handles_) handle.wait();
    handles_.clear();
  }

 private:
  void submit(std::size_t lane, const Tensor& in, const Tensor& out) {
    const Signature& how = work_.signature;
    const TensorId id = ids_[lane];
    const bool on_root = how.root == session_.rank();
    switch (how.kind) {
      case OpKind::all_reduce: return put(session_.all_reduce_async(id, in, out, {.op = how.op, .ready = ready_}));
      case OpKind::reduce:
        return put(
            session_.reduce_async(id, in, on_root ? out : Tensor{}, {.op = how.op, .root = how.root, .ready = ready_}));
      case OpKind::broadcast: return put(session_.broadcast_async(id, out, {.root = how.root, .ready = ready_}));
      case OpKind::all_gather: return put(session_.all_gather_async(id, in, out, {.ready = ready_}));
      case OpKind::reduce_scatter:
        return put(session_.reduce_scatter_async(id, in, out, {.op = how.op, .ready = ready_}));
      case OpKind::all_to_all: return put(session_.all_to_all_async(id, in, out, {.ready = ready_}));
      case OpKind::gather:
        return put(session_.gather_async(id, in, on_root ? out : Tensor{}, {.root = how.root, .ready = ready_}));
      case OpKind::scatter: return put(session_.scatter_async(id, in, out, {.root = how.root, .ready = ready_}));
      default:
        put(session_.send_async(names_[lane], in, (session_.rank() + 1) % session_.size(), {.ready = ready_}));
        put(session_.recv_async(names_[lane], out, (session_.rank() + session_.size() - 1) % session_.size(),
                                {.ready = ready_}));
    }
  }
  void put(Handle handle) { handles_.push_back(std::move(handle)); }

  Session& session_;
  Work work_;
  void* ready_;
  std::vector<std::string> names_;
  std::vector<TensorId> ids_;
  std::vector<Handle> handles_;
};

}  // namespace

std::unique_ptr<Asynchronous> through_session(Session& session, const Work& work, void* ready) {
  return std::make_unique<ThroughSession>(session, work, ready);
}

}  // namespace kolo::bench

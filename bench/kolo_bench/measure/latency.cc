// Dependent operations: one tensor is submitted by name and waited for, then again.

#include "bench/kolo_bench/measure/context.h"

namespace kolo::bench {
namespace {

class Dependent final : public Candidate {
 public:
  Dependent(Session& session, const Tensor& value, void* ready) : session_(session), value_(value), ready_(ready) {}
  std::string_view name() const override { return "kolo"; }
  void run() override { session_.all_reduce("latency", value_, {.op = ReduceOp::sum, .ready = ready_}); }

 private:
  Session& session_;
  Tensor value_;
  void* ready_;
};

constexpr std::int64_t default_iterations = 20'000;
constexpr std::int64_t default_warm_up = 2'000;

}  // namespace

void run_latency(BenchContext& context) {
  const Options& options = context.options();
  context.watch().begin("the latency of one tensor");
  constexpr std::size_t bytes = sizeof(float);
  const Storage value = context.storage(bytes);
  const Tensor tensor{value.data(), Shape{}, DType::f32, context.place().device()};
  Work work;
  work.signature.device = tensor.device.kind;
  work.in_place = true;
  work.lanes.push_back({tensor, tensor});
  work.name = "latency";
  Dependent kolo(context.session(), tensor, context.place().stream());
  const auto peer = context.peer() ? context.peer()->candidate(work, context.peer()->name()) : nullptr;
  std::vector<Candidate*> candidates{&kolo};
  if (peer) candidates.push_back(peer.get());

  Schedule schedule = schedule_for(options, bytes, candidates.size() == 1);
  schedule.iterations = options.iterations.value_or(default_iterations);
  schedule.warm_up = options.warm_up.value_or(default_warm_up);
  schedule.in_a_row = candidates.size() == 1 ? schedule.iterations : 100;
  Options shown = options;
  shown.sizes = {bytes, bytes};
  shown.iterations = schedule.iterations;
  shown.warm_up = schedule.warm_up;
  context.begin(context.peers(), shown);
  const auto series = measure(context.ranks(), candidates, schedule);

  Result result = make_result(context, work, candidates, series);
  result.mode = "latency";
  result.wrong = context.wrong_elements(work, kolo, false);
  for (PeerResult& result_of_peer : result.compare) result_of_peer.wrong = context.wrong_elements(work, *peer, true);
  context.add({result});
}

}  // namespace kolo::bench

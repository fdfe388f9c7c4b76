// One tensor, submitted by name and waited for, and only then again: what every operation depends on is the one before
// it.

#include "bench/kolo_bench/stage.h"

namespace kolo::bench {
namespace {

class Dependent final : public Contestant {
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

void run_latency(Stage& stage) {
  const Options& options = stage.options();
  stage.watch().begin("the latency of one tensor");
  constexpr std::size_t bytes = sizeof(float);
  const Storage value = stage.storage(bytes);
  const Tensor tensor{value.data(), Shape{}, DType::f32, stage.place().device()};
  Work work;
  work.signature.device = tensor.device.kind;
  work.in_place = true;
  work.lanes.push_back({tensor, tensor});
  work.name = "latency";
  Dependent kolo(stage.session(), tensor, stage.place().stream());
  const auto rival = stage.rival() ? stage.rival()->contestant(work, stage.rival()->name()) : nullptr;
  std::vector<Contestant*> contestants{&kolo};
  if (rival) contestants.push_back(rival.get());

  Schedule schedule = schedule_for(options, bytes, contestants.size() == 1);
  schedule.iterations = options.iterations.value_or(default_iterations);
  schedule.warm_up = options.warm_up.value_or(default_warm_up);
  schedule.in_a_row = contestants.size() == 1 ? schedule.iterations : 100;
  Options shown = options;
  shown.sizes = {bytes, bytes};
  shown.iterations = schedule.iterations;
  shown.warm_up = schedule.warm_up;
  stage.begin(stage.rivals(), shown);
  const auto series = measure(stage.ranks(), contestants, schedule);

  Result result = make_result(stage, work, contestants, series);
  result.mode = "latency";
  result.wrong = stage.wrong_elements(work, kolo, false);
  for (PeerResult& peer : result.compare) peer.wrong = stage.wrong_elements(work, *rival, true);
  stage.add({result});
}

}  // namespace kolo::bench

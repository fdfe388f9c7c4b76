// One tensor, submitted by name and waited for, and only then again: what every operation depends on is the one before it.

#include "bench/kolo_bench/stage.h"

namespace kolo::bench {
namespace {

class Dependent final : public Contestant {
 public:
  Dependent(Session& session, const Tensor& value) : session_(session), value_(value) {}
  std::string_view name() const override { return "kolo"; }
  void run() override { session_.all_reduce("latency", value_, {.op = ReduceOp::sum}); }

 private:
  Session& session_;
  Tensor value_;
};

constexpr std::int64_t default_iterations = 20'000;
constexpr std::int64_t default_warm_up = 2'000;

}  // namespace

void run_latency(Stage& stage) {
  const Options& options = stage.options();
  stage.watch().begin("the latency of one tensor");
  float value = 0;
  const Tensor tensor = view_scalar(value);
  Work work;
  work.in_place = true;
  work.lanes.push_back({tensor, tensor});
  work.name = "latency";
  Dependent kolo(stage.session(), tensor);
  const auto mpi = raw_mpi(stage.ranks().comm(), work);
  std::vector<Contestant*> contestants{&kolo};
  if (options.compare_mpi) contestants.push_back(mpi.get());

  Schedule schedule = schedule_for(options, sizeof(value), contestants.size() == 1);
  schedule.iterations = options.iterations.value_or(default_iterations);
  schedule.warm_up = options.warm_up.value_or(default_warm_up);
  schedule.in_a_row = contestants.size() == 1 ? schedule.iterations : 100;
  Options shown = options;
  shown.sizes = {sizeof(value), sizeof(value)};
  shown.iterations = schedule.iterations;
  shown.warm_up = schedule.warm_up;
  stage.begin(options.compare_mpi ? std::vector<std::string>{"mpi"} : std::vector<std::string>{}, shown);
  const auto series = measure(stage.ranks(), contestants, schedule);

  Result result = make_result(stage, work, contestants, series);
  result.mode = "latency";
  result.wrong = stage.wrong_elements(work, kolo, false);
  for (PeerResult& peer : result.compare) peer.wrong = stage.wrong_elements(work, *mpi, true);
  stage.add({result});
}

}  // namespace kolo::bench

// Dependent operations: one tensor is submitted, by name or in an ordered group, and waited for, then again.

#include <span>
#include <utility>
#include <vector>

#include "bench/kolo_bench/measure/context.h"

namespace kolo::bench {
namespace {

class Dependent final : public Candidate {
 public:
  Dependent(BenchContext& context, const Tensor& value, const Group& group)
      : session_(context.session()), value_(value), options_{.group = group, .ready = context.place().stream()} {}
  std::string_view name() const override { return "kolo"; }
  void run() override {
    const bool in_order = options_.group.info() && options_.group.info()->order == Order::program;
    in_order ? session_.all_reduce(value_, options_) : session_.all_reduce("latency", value_, options_);
  }
  std::string_view method() const override { return session_.stats().method; }

 private:
  Session& session_;
  Tensor value_;
  AllReduceOptions options_;
};

/// 8 bytes from rank 0 to rank 1 of an ordered group, the next time back: half a round trip each. They count the trips.
class HalfRoundTrip final : public Candidate {
 public:
  explicit HalfRoundTrip(Session& session)
      : session_(session), group_(session.new_group(std::vector{0, 1}, {.order = Order::program})) {}
  std::string_view name() const override { return "kolo"; }
  void run() override {
    const bool back = std::exchange(back_, !back_);
    if (session_.rank() > 1) return;
    const bool sends = (session_.rank() == 1) == back;
    ++trips_;
    if (sends) ++value_;
    const PairOptions options{.group = group_};
    sends ? session_.send(view_scalar(value_), 1 - session_.rank(), options)
          : session_.recv(view_scalar(value_), 1 - session_.rank(), options);
  }

  /// Whether this rank's value is not that of the last trip.
  bool is_wrong() const { return value_ != trips_; }

 private:
  Session& session_;
  Group group_;
  double value_ = 0, trips_ = 0;
  bool back_ = false;
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
  Dependent kolo(context, tensor, context.group());
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
  TimedCheck check(context, work, kolo);
  const auto series = measure(context.ranks(), candidates, schedule, &check);

  Result result = make_result(context, work, candidates, series);
  result.mode = "latency";
  result.wrong = check.all_wrong();
  for (PeerResult& result_of_peer : result.compare) result_of_peer.wrong = context.wrong_elements(work, *peer, true);
  context.add({result});

  // The rows below are compared with the first.
  schedule.in_a_row = schedule.iterations;
  const PeerResult all_reduce{.name = "all_reduce",
                              .time_us = result.time_us,
                              .mean_of_total_us = result.mean_of_total_us,
                              .version = "kolo " + context.world().version};
  const auto measure_alone = [&](Candidate& candidate, const char* op, LastIteration* last) {
    Candidate* const alone = &candidate;
    const std::span<Candidate* const> only(&alone, 1);
    Result row = make_result(context, work, only, measure(context.ranks(), only, schedule, last));
    row.op = op;
    row.mode = "latency";
    row.compare = {all_reduce};
    row.compare[0].ratio = all_reduce.time_us.p50 / row.time_us.p50;
    return row;
  };
  if (!options.ordered) {
    Dependent in_order(context, tensor, context.ordered_group());
    TimedCheck check_of_ordered(context, work, in_order);
    result = measure_alone(in_order, "ordered_all_reduce", &check_of_ordered);
    result.wrong = check_of_ordered.all_wrong();
    context.add({result});
  }
  if (context.ranks().size() < 2 || tensor.device.kind != DeviceKind::cpu) return;
  HalfRoundTrip trip(context.session());
  result = measure_alone(trip, "send_recv", nullptr);
  if (options.checks > 0) result.wrong = context.ranks().sum(trip.is_wrong() ? 1 : 0);
  result.bytes = sizeof(double);
  result.dtype = DType::f64;
  result.redop.reset();
  context.add({result});
}

}  // namespace kolo::bench

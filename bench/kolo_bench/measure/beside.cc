// Small operations beside a large one: in turn the large one runs alone, and with dependent small ones in another
// group, one after the other until it is done on every rank. What a rank adds in the small ones says whether it is.

#include <cstring>
#include <numeric>

#include "bench/kolo_bench/measure/context.h"
#include "bench/kolo_bench/measure/sums.h"
#include "ops/gpu/gpu.h"

namespace kolo::bench {
namespace {

/// The small operations of one rank, where the large one's tensors lie.
class SmallOnes {
 public:
  SmallOnes(BenchContext& context, std::int64_t bytes) : context_(context), group_(group_of_all(context)) {
    const std::int64_t count = std::max<std::int64_t>(bytes / static_cast<std::int64_t>(sizeof(float)), 1);
    const BufferPlacement& place = context.place();
    if (place.device().kind == DeviceKind::cuda) gpu_ = &cuda_gpu(place.device().index);
    memory_ = place.storage(static_cast<std::size_t>(count) * sizeof(float));
    tensor_ = {memory_.data(), Shape{count}, DType::f32, place.device()};
    std::vector<double> unused;
    run(false, unused);  // opens the group
  }

  /// Returns how many ranks said that they are done. How long the operation takes does not include the copies of what
  /// it says to a GPU and back.
  int run(bool done, std::vector<double>& us) {
    std::byte* const last = memory_.data() + tensor_.bytes() - sizeof(float);
    float value = done ? 1 : 0;
    copy(last, &value);
    const auto begin = Clock::now();
    context_.session().all_reduce("small", tensor_, {.group = group_, .ready = context_.place().stream()});
    us.push_back(us_since(begin));
    copy(&value, last);
    return static_cast<int>(value);
  }

  /// Until `large` is done on every rank: it is asked now and then, since that costs time.
  void run_beside(Asynchronous& large, std::vector<double>& us) {
    constexpr int rarely = 8;
    bool done = false;
    for (int i = 1;; ++i) {
      if (run(done, us) == context_.ranks().size()) return;
      if (i % rarely == 0 && !done) done = large.done();
    }
  }

  std::int64_t bytes() const { return static_cast<std::int64_t>(tensor_.bytes()); }

 private:
  static Group group_of_all(BenchContext& context) {
    std::vector<int> ranks(static_cast<std::size_t>(context.ranks().size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return context.session().new_group(ranks);
  }

  void copy(void* to, const void* from) const {
    gpu_ ? gpu_->copy(to, from, sizeof(float)) : static_cast<void>(std::memcpy(to, from, sizeof(float)));
  }

  BenchContext& context_;
  Group group_;
  Gpu* gpu_ = nullptr;  // null: on the host
  Storage memory_;
  Tensor tensor_;
};

Result measure_beside(BenchContext& context, const Work& work, Asynchronous& large, SmallOnes& small,
                      LastIteration& last) {
  const Ranks& ranks = context.ranks();
  const Options& options = context.options();
  const Schedule schedule = schedule_for(options, static_cast<std::int64_t>(work.bytes_in()), false);
  for (std::int64_t i = 0; i < schedule.warm_up; ++i) large.run();
  run_until_settled(ranks, large);
  std::vector<double> alone_us, beside_us, small_us;
  for (std::int64_t i = 0; i < schedule.iterations; ++i) {
    ranks.barrier();
    auto begin = Clock::now();
    large.run();
    alone_us.push_back(us_since(begin));
    const bool checked = i + 1 == schedule.iterations;
    if (checked) last.before();
    ranks.barrier();
    begin = Clock::now();
    large.start();
    small.run_beside(large, small_us);
    large.finish();
    beside_us.push_back(us_since(begin));
    if (checked) last.after();
  }
  const std::vector<Candidate*> candidates{&large};
  Result result = make_result(context, work, candidates, {combine(ranks, std::move(alone_us), options.combine)});
  result.mode = "beside";
  result.method.clear();  // the last bucket was a small one's
  const auto count = static_cast<std::int64_t>(small_us.size());
  result.beside = Beside{small.bytes(), count, percentiles(combine(ranks, std::move(small_us), options.combine).us),
                         percentiles(combine(ranks, std::move(beside_us), options.combine).us).p50, result.time_us.p50};
  return result;
}

}  // namespace

void run_beside(BenchContext& context) {
  const Sums sums(context);
  context.begin({});
  SmallOnes small(context, context.options().beside_bytes);
  sums.each([&](const Work& work) {
    const auto large = through_session(context.session(), work, context.place().stream());
    context.fill(work);
    TimedCheck check(context, work, *large);
    Result result = measure_beside(context, work, *large, small, check);
    result.wrong = check.all_wrong();
    context.add({result});
  });
}

}  // namespace kolo::bench

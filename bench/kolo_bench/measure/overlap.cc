// OSU's definition: an operation is timed without computation; then it is started, a computation of the same length
// runs, and the rest of the operation is waited for. Overlap is the share of the operation's own time that is hidden
// behind the computation.

#include <fmt/format.h>

#include <ctime>

#include "bench/kolo_bench/measure/context.h"
#include "bench/kolo_bench/measure/sums.h"

namespace kolo::bench {
namespace {

/// A computation of any length, on data in the L1 cache. Its length is that of the thread's own time on a core: how
/// fast the core is, and what else runs there, changes neither.
class Computation {
 public:
  /// Returns how long it was.
  double run(double us) {
    const double begin = own_us();
    while (own_us() < begin + us) repeat();
    return own_us() - begin;
  }

 private:
  static double own_us() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
  }
  /// Some microseconds.
  void repeat() {
    for (int i = 0; i < 100; ++i) {
      for (float& value : values_) value = value * 0.5f + 0.5f;
      asm volatile("" : : "r"(values_.data()) : "memory");
    }
  }

  std::vector<float> values_ = std::vector<float>(1024, 1.0f);
};

struct Overlapped {
  std::vector<double> overall_us, compute_us;
};

void run_once(const Ranks& ranks, Asynchronous& candidate, Computation& computation, double us, Overlapped& times) {
  ranks.barrier();
  const auto begin = Clock::now();
  candidate.start();
  times.compute_us.push_back(computation.run(us));
  candidate.finish();
  times.overall_us.push_back(us_since(begin));
}

Result measure_overlap(BenchContext& context, const Work& work, const std::vector<Asynchronous*>& candidates,
                       Computation& computation, LastIteration& last) {
  const Options& options = context.options();
  const Ranks& ranks = context.ranks();
  Schedule schedule = schedule_for(options, static_cast<std::int64_t>(work.bytes_in()), false);
  schedule.isolated = true;
  const std::vector<Candidate*> alone(candidates.begin(), candidates.end());
  const auto pure = measure(ranks, alone, schedule);

  std::vector<Overlapped> times(candidates.size());
  for (std::int64_t i = 0; i < schedule.iterations; ++i) {
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      const bool checked = c == 0 && i + 1 == schedule.iterations;
      if (checked) last.before();
      run_once(ranks, *candidates[c], computation, percentiles(pure[c].us).p50, times[c]);
      if (checked) last.after();
    }
  }
  std::vector<Series> overall;
  std::vector<Overlap> overlaps;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    overall.push_back(combine(ranks, std::move(times[c].overall_us), options.combine));
    const Series compute = combine(ranks, std::move(times[c].compute_us), options.combine);
    overlaps.push_back({percentiles(overall[c].us).p50, percentiles(compute.us).p50, percentiles(pure[c].us).p50});
  }
  Result result = make_result(context, work, alone, overall);
  result.mode = "overlap";
  result.overlap = overlaps[0];
  for (std::size_t c = 1; c < overlaps.size(); ++c) result.compare[c - 1].overlap = overlaps[c];
  return result;
}

}  // namespace

void run_overlap(BenchContext& context) {
  const Sums sums(context);
  Peer* const peer = context.peer();
  cli::collectively(context.ranks(), [&] {
    if (!peer) return;
    if (const auto reason = peer->refuses(sums.work(context.options().sizes.max)))
      throw UsageError(
          fmt::format("--compare {0}: {1}; leave it out, or measure what {0} can do", peer->name(), *reason));
  });
  context.begin(context.peers());
  Computation computation;
  sums.each([&](const Work& work) {
    const auto kolo = through_session(context.session(), work, context.place().stream(), context.group());
    const auto theirs = peer ? peer->candidate(work, peer->name()) : nullptr;
    std::vector<Asynchronous*> candidates{kolo.get()};
    if (theirs) candidates.push_back(theirs.get());
    context.fill(work);
    TimedCheck check(context, work, *kolo);
    Result result = measure_overlap(context, work, candidates, computation, check);
    result.wrong = check.all_wrong();
    context.add({result});
  });
}

}  // namespace kolo::bench

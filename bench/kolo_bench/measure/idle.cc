#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "bench/kolo_bench/measure/context.h"

namespace kolo::bench {
namespace {

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

void run_idle(BenchContext& context, const std::function<std::int64_t()>& mpi_calls) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds to_settle{200};
  context.begin({});
  float value = 1;
  context.session().all_reduce("before idling", view_scalar(value));
  std::this_thread::sleep_for(to_settle);

  const auto begin = Clock::now();
  const double cpu_before = cpu_seconds();
  const std::int64_t calls_before = mpi_calls();
  std::this_thread::sleep_for(std::chrono::duration<double>(context.options().idle_seconds));
  const std::int64_t calls = mpi_calls() - calls_before;
  const double cpu = cpu_seconds() - cpu_before;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();

  Report& report = context.report();
  report.idle_seconds = seconds;
  const auto texts = context.ranks().gather(fmt::format("{} {}", cpu / seconds * 100, calls));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto space = texts[rank].find(' ');
    report.idle.push_back(
        {static_cast<int>(rank), std::stod(texts[rank].substr(0, space)), std::stoll(texts[rank].substr(space + 1))});
  }
}

}  // namespace kolo::bench

// How long one dependent 4-byte all_reduce takes through the whole runtime: submit, negotiate, execute, wait, and only
// then the next. Run it under mpirun; prints rank 0's percentiles.

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include <kolo/session.h>

#include "apps/cli/statistics.h"

namespace {

constexpr int warm_up = 2000;
constexpr int rounds = 20000;

template <class Reduce>
void measure(kolo::Session& session, const char* what, Reduce&& reduce) {
  std::vector<double> times_us;
  for (int round = 0; round < warm_up + rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    reduce();
    if (round < warm_up) continue;
    times_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  const auto t = kolo::cli::percentiles(std::move(times_us));
  if (session.rank() == 0) fmt::print("{:<28} {:8.2f} {:8.2f} {:8.2f} {:8.2f}\n", what, t.p50, t.p95, t.p99, t.max);
}

}  // namespace

int main() {
  kolo::Session session;
  if (session.rank() == 0) {
    fmt::print("dependent 4-byte all_reduce, {} ranks, {} rounds, microseconds\n{:<28} {:>8} {:>8} {:>8} {:>8}\n",
               session.size(), rounds, "", "p50", "p95", "p99", "max");
  }
  float value = 1;
  const kolo::Tensor tensor = kolo::view_scalar(value);
  const kolo::AllReduceOptions average{.op = kolo::ReduceOp::average};
  const kolo::TensorId id = session.declare("value");
  measure(session, "all_reduce", [&] { session.all_reduce("value", tensor, average); });
  measure(session, "all_reduce_async, wait", [&] { session.all_reduce_async(id, tensor, tensor, average).wait(); });
  if (value != 1) fmt::print("wrong result: {} instead of 1\n", value);
  return value == 1 ? 0 : 1;
}

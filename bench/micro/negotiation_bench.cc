// The cost of negotiation without data: ranks as threads of one process, tensors of one element, steps of 200 tensors.
// "first" steps announce every name in full, "steady" ones a bucket at a time.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "apps/cli/statistics.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int tensors = 200;
constexpr int steps = 500;

struct Figures {
  double first_us = 0;
  kolo::cli::Percentiles steady_us;
  double agreements_per_step = 0;
  double control_bytes_per_step = 0;
};

Figures run_rank(kolo::World world, const kolo::Config& config) {
  kolo::Session session(std::move(world), config);
  std::vector<float> values(tensors, 0.0f);
  std::vector<kolo::TensorId> ids;
  for (int i = 0; i < tensors; ++i) ids.push_back(session.declare(fmt::format("g{}", i)));
  const auto step = [&] {
    const auto start = Clock::now();
    std::vector<kolo::Handle> handles;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto tensor = kolo::view_scalar(values[i]);
      handles.push_back(session.all_reduce_async(ids[i], tensor, tensor));
    }
    for (auto& handle : handles) handle.wait();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  };
  Figures figures;
  figures.first_us = step();
  step();
  const auto before = session.stats();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) times.push_back(step());
  const auto after = session.stats();
  figures.steady_us = kolo::cli::percentiles(std::move(times));
  figures.agreements_per_step = static_cast<double>(after.agreements - before.agreements) / steps;
  figures.control_bytes_per_step = static_cast<double>(after.control_bytes_sent - before.control_bytes_sent) / steps;
  return figures;
}

Figures run(int ranks, std::int64_t fusion_bytes) {
  kolo::Config config;
  config.fusion_bytes = fusion_bytes;
  auto worlds = kolo::thread_worlds(ranks, config);
  std::vector<Figures> figures(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] { figures[rank] = run_rank(std::move(worlds[rank]), config); });
  }
  for (auto& thread : threads) thread.join();
  return figures[0];
}

}  // namespace

int main() {
  fmt::print("steps of {} one-element tensors, ranks as threads, rank 0's figures over {} steps\n", tensors, steps);
  fmt::print("{:>5} {:>8} {:>10} {:>12} {:>12} {:>12} {:>14} {:>14}\n", "ranks", "buckets", "first us", "steady p50",
             "p95 us", "us/bucket", "agreements", "bytes sent");
  for (int ranks : {1, 2, 4}) {
    for (int buckets : {1, 10, 200}) {
      const Figures f = run(ranks, std::max(1, tensors / buckets) * static_cast<std::int64_t>(sizeof(float)));
      fmt::print("{:>5} {:>8} {:>10.1f} {:>12.1f} {:>12.1f} {:>12.2f} {:>14.1f} {:>14.1f}\n", ranks, buckets,
                 f.first_us, f.steady_us.p50, f.steady_us.p95, f.steady_us.p50 / buckets, f.agreements_per_step,
                 f.control_bytes_per_step);
    }
  }
}

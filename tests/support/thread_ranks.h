#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "ops/registry/registry.h"
#include "ops/shm/backend.h"
#include "ops/two_level/node_placement.h"
#include "runtime/control/thread.h"
#include "runtime/world/parts.h"

namespace kolo::testing {

/// Memory as small as can be: every path, every border, and many chunks, with little data; results past the cache.
inline constexpr ShmTuning tiny_memory{.ring = 512,
                                       .chunk = 256,
                                       .hot = 64,
                                       .in_flight = 4,
                                       .step = 300,
                                       .whole = 100,
                                       .spills = 3000,
                                       .large = 5000,
                                       .direct = 200};
inline constexpr ShmTuning small_memory{.ring = 10048,
                                        .chunk = 4096,
                                        .hot = 256,
                                        .in_flight = 8,
                                        .step = 1000,
                                        .whole = 300,
                                        .large = 2000,
                                        .direct = 1000};

/// Settings for tests: a wait that cannot end is reported soon and ends the program before the test's time-out.
/// KOLO_FAKE_NODES places ranks that are processes.
inline Config test_config() {
  Config config;
  if (const char* nodes = std::getenv("KOLO_FAKE_NODES")) config.fake_nodes = nodes;
  config.stall_report_seconds = 20;
  config.stall_abort_seconds = 40;
  return config;
}

/// Worlds for ranks as threads. With KOLO_TEST_BACKEND=shm in the environment, ranks that are on one node have a shm
/// backend, with memory so small that a few thousand elements go through it in many chunks; "local" runs what that does
/// not serve.
inline std::vector<World> test_worlds(int size, const Config& config) {
  auto worlds = thread_worlds(size, config);
  const char* backend = std::getenv("KOLO_TEST_BACKEND");
  ControlChannel& channel = *worlds.front().parts().control;
  if (!backend || std::string_view(backend) != "shm" || channel.topology().nodes() > 1) return worlds;
  auto shared = shm_thread_backends(size, thread_doorbells(channel), small_memory);
  const auto domain_of = pretended_domains(config, size);
  if (spans_shared_nodes(domain_of)) shared = thread_domains_backends(std::move(shared), domain_of);
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) worlds[rank].prefer(std::move(shared[rank]));
  return worlds;
}

/// Ends a session: until then no thread may have found work that nobody had woken it for.
inline void close(Session& session) {
  session.close();
  EXPECT_EQ(session.stats().late_wakeups, 0U) << "on rank " << session.rank();
}

/// Plays `size` ranks as threads of this process, each with a world of its own; an exception that leaves `program`
/// fails the test.
inline void run_worlds(int size, const std::function<void(int rank, World&)>& program, const Config& config) {
  auto worlds = test_worlds(size, config);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        program(rank, worlds[static_cast<std::size_t>(rank)]);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The same with a session each.
inline void run_ranks(int size, const std::function<void(Session&)>& program, const Config& config = test_config()) {
  run_worlds(
      size,
      [&](int, World& world) {
        Session session(std::move(world), config);
        program(session);
        close(session);
      },
      config);
}

/// The text of the Error that `call` throws; fails the test if it throws none.
template <class Call>
std::string error_text(Call&& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace kolo::testing

// Worlds without MPI, and which world a launcher has meant.

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <kolo/error.h>
#include <kolo/store.h>

#include "ops/host/process.h"
#include "runtime/world/at_exit.h"
#include "runtime/world/launcher_world.h"
#include "runtime/world/process_world.h"
#include "runtime/world/store_agreements.h"
#include "runtime/world/store_gathering.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int ports = 16;  // that are tried

/// What tells this job from others whose ranks meet at a port nearby.
std::string job_of(const Launched& launched) {
  std::string job = fmt::format("{} {}", launched.port, launched.ranks);
  for (const char* variable : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    const char* const text = std::getenv(variable);
    job += fmt::format(" {}", text ? text : "-");
  }
  return job;
}

/// Where the ranks of a launcher without MPI meet. At MASTER_PORT itself there may be another library's store, such as
/// torchrun's own: rank 0 serves one at the first free port behind it, and writes into it whose it is; the others look
/// for it there.
std::unique_ptr<Store> meet(const Launched& launched, const Config& config) {
  constexpr auto answer_time = 60s;
  constexpr std::string_view key = "kolo/job";
  const std::string job = job_of(launched);
  const auto port = [&](int i) { return static_cast<std::uint16_t>(launched.port + 1 + i); };
  const int most = std::min(ports, 65535 - launched.port);
  std::string why = "no port is free";
  if (launched.rank == 0) {
    for (int i = 0; i < most; ++i) {
      try {
        auto store = std::make_unique<TcpStore>(launched.address, port(i), true, answer_time);
        store->set(key, std::as_bytes(std::span(job)));
        return store;
      } catch (const Error& error) {
        why = error.what();
      }
    }
  } else {
    const double limit = config.stall_abort_seconds > 0 ? config.stall_abort_seconds : 1e6;
    const auto deadline = Clock::now() + std::chrono::duration<double>(limit);
    double next_report = config.stall_report_seconds;
    for (const auto start = Clock::now(); Clock::now() < deadline; std::this_thread::sleep_for(20ms)) {
      for (int i = 0; i < most; ++i) {
        try {
          TcpStore look(launched.address, port(i), false, 0ms);
          const Store::Bytes said = look.get(key, Clock::now());
          if (std::string_view(reinterpret_cast<const char*>(said.data()), said.size()) == job)
            return std::make_unique<TcpStore>(launched.address, port(i), false, answer_time);
          why = fmt::format("the one at port {} is another job's, or its rank 0 has been told another number of ranks",
                            port(i));
        } catch (const Error& error) {
          why = error.what();
        }
      }
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (waited < next_report) continue;
      next_report = 2 * waited;
      report(config, fmt::format("rank {}: making the session has waited for {:.1f} s: rank 0 serves no store at {}, "
                                 "ports {} to {} ({})",
                                 launched.rank, waited, launched.address, port(0), port(most - 1), why));
    }
  }
  throw Error(
      launched.rank == 0 ? ErrorCode::backend : ErrorCode::stalled,
      fmt::format("the ranks cannot meet: rank 0 serves no store at {}, ports {} to {} ({}); set MASTER_ADDR and "
                  "MASTER_PORT to where its host has free ports",
                  launched.address, port(0), port(most - 1), why));
}

}  // namespace

World store_world(Store& store, int rank, int size, const Config& config) {
  refuse_forked();
  notice_forks();
  leave_sessions_at_exit();
  StoreGathering gathering(store, rank, size, config);
  std::function<void(int)> end_job;  // a launcher ends a job when one of its processes fails
  if (config.may_exit.value_or(false)) end_job = [](int code) { std::_Exit(code); };
  const auto agreements = [&, prefix = gathering.prefix(), made = 0]() mutable {
    return store_agreements(store, fmt::format("{}gpu {}/", prefix, made++), rank, size);
  };
  return process_world(gathering, std::move(end_job), backends_without_mpi(agreements), config);
}

World store_launcher_world(const Launched& launched, const Config& config) {
  refuse_forked();
  static Store& store = *meet(launched, config).release();  // others may need it until the process ends
  return store_world(store, launched.rank, launched.ranks, config);
}

std::string why_not_over_mpi(int rank, int size) {
  Launched said;
  try {
    said = launched();
  } catch (const Error& error) {
    return error.what();
  }
  if (!said.by_mpi || said.ranks == 0) return "no launcher that MPI knows has started this process";
  if (said.rank != rank || said.ranks != size)
    return fmt::format("the launcher has started this process as rank {} of {}", said.rank, said.ranks);
  return why_no_mpi();
}

World launcher_world(const Config& config) {
  const Launched said = launched();
  if (said.by_mpi) return mpi_launcher_world(said, config);
  return said.ranks == 1 ? solo_world(config) : store_launcher_world(said, config);
}

}  // namespace kolo

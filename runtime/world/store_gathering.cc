#include "runtime/world/store_gathering.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <kolo/error.h>

#include "ops/host/machine.h"
#include "runtime/control/process_watch.h"
#include "runtime/control/topology.h"
#include "runtime/control/wire.h"
#include "runtime/watchdog/stall_report.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto for_the_verdict = 2s;  // of rank 0, beyond the deadline
constexpr auto never = 24h * 365;

Clock::time_point after(Clock::time_point start, double seconds) {
  const auto time = std::chrono::duration<double>(std::min(seconds, std::chrono::duration<double>(never).count()));
  return start + std::chrono::duration_cast<Clock::duration>(time);
}

/// Equal for processes that can share memory: on one machine, under one host name, and which see each other's numbers.
std::string node_of_this_process() {
  return fmt::format("{} {} {}", host_name(), boot_id(), pid_namespace());
}

Error different_sizes(int rank, int size, int of_rank_0) {
  return {ErrorCode::mismatch, fmt::format("making a world from a store: rank 0 makes one of {} ranks, rank {} one of "
                                           "{}; pass the same size on every rank",
                                           of_rank_0, rank, size)};
}

}  // namespace

StoreGathering::StoreGathering(Store& store, int rank, int size, const Config& config)
    : store_(store), rank_(rank), size_(size), config_(config), next_report_(config.stall_report_seconds) {
  if (rank < 0 || rank >= size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a world of {} ranks from a store has no rank {}; ranks are numbered from 0", size, rank));
  epoch_ = store_.add(fmt::format("kolo/epoch/{}", rank_), 1);
}

/// Whoever is the last to have read the last round's key removes it.
StoreGathering::~StoreGathering() {
  if (failed_ || round_ == 0) return;
  try {
    const std::string readers = key(round_, "read");
    if (store_.add(readers, 1) < size_) return;
    store_.remove(key_of_all(round_ - 1));
    store_.remove(readers);
  } catch (const Error&) {  // the store has gone, and its keys with it
  }
}

std::string StoreGathering::prefix() const {
  return fmt::format("kolo/{}/", epoch_);
}

std::string StoreGathering::key(std::uint64_t round, const std::string& what) const {
  return fmt::format("{}{}/{}", prefix(), round, what);
}

std::vector<std::vector<std::byte>> StoreGathering::all(std::span<const std::byte> mine) {
  Store::Bytes together;
  try {
    Writer said;
    said.put(static_cast<std::int32_t>(size_));
    said.append(mine);
    store_.set(key_of(rank_), said.bytes());
    const double limit = config_.stall_abort_seconds > 0 ? config_.stall_abort_seconds : 1e9;
    together = rank_ == 0 ? collect() : wait_for(key_of_all(round_), after(Clock::now(), limit) + for_the_verdict);
  } catch (const Error&) {
    failed_ = true;
    throw;
  }
  ++round_;
  Reader reader(together);
  failed_ = true;
  if (const auto size = reader.get<std::int32_t>(); size != size_) throw different_sizes(rank_, size_, size);
  const auto code = reader.get<ErrorCode>(static_cast<int>(ErrorCode::backend) + 1);
  if (const std::string failure = reader.get_string(); !failure.empty()) throw Error(code, failure);
  failed_ = false;
  std::vector<std::vector<std::byte>> result(static_cast<std::size_t>(size_));
  for (auto& bytes : result) {
    bytes.resize(reader.get_length(1));
    reader.copy_to(bytes);
  }
  return result;
}

/// What all have said; or that somebody is missing, which the others learn too.
Store::Bytes StoreGathering::collect() {
  Writer together;
  const double limit = config_.stall_abort_seconds > 0 ? config_.stall_abort_seconds : 1e9;
  const auto deadline = after(Clock::now(), limit);
  const auto say = [&](ErrorCode code, std::string_view failure) {
    together.clear();
    together.put(static_cast<std::int32_t>(size_));
    together.put(code);
    together.put(failure);
  };
  try {
    say({}, "");
    for (int rank = 0; rank < size_; ++rank) {
      const Store::Bytes bytes = wait_for(key_of(rank), deadline);
      Reader said(bytes);
      if (const auto size = said.get<std::int32_t>(); size != size_) throw different_sizes(rank, size, size_);
      together.put(static_cast<std::uint32_t>(bytes.size() - sizeof(std::int32_t)));
      together.append(std::span(bytes).subspan(sizeof(std::int32_t)));
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::backend) throw;  // the store's
    say(error.code(), error.what());
  }
  const auto bytes = together.bytes();
  store_.set(key_of_all(round_), bytes);
  for (int rank = 0; rank < size_; ++rank) store_.remove(key_of(rank));
  if (round_ > 0) store_.remove(key_of_all(round_ - 1));  // all have read it, or would not have come here
  return {bytes.begin(), bytes.end()};
}

/// The value, when it is there. Reports meanwhile who is missing. Throws Error{stalled} that names them.
Store::Bytes StoreGathering::wait_for(const std::string& key, Store::Deadline deadline) {
  for (;;) {
    try {
      return store_.get(key, std::min(deadline, after(start_, next_report_)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::stalled) throw;
    }
    const double waited = seconds_since(start_);
    const RankSet late = missing();
    const bool over = Clock::now() >= deadline;
    if (has(key)) continue;  // it came while the others' were looked for
    if (over) {
      const std::string again =
          epoch_ == 1 ? "" : fmt::format(" (it is rank {}'s world number {} from this store)", rank_, epoch_);
      throw Error(ErrorCode::stalled,
                  fmt::format("making a world from a store{}: not there after {:.3g} s: {}; see how these processes "
                              "have ended, give each process a rank of its own, and use a new store",
                              again, waited, to_string(late)));
    }
    if (waited < next_report_) continue;
    next_report_ = 2 * waited;
    report(config_, explain_opening(rank_, waited, {{to_string(late)}, {}}));
  }
}

bool StoreGathering::has(const std::string& key) {
  try {
    (void)store_.get(key, Clock::now());
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stalled) throw;
    return false;
  }
}

/// Who has not said anything in this round.
RankSet StoreGathering::missing() {
  RankSet late;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has(key_of(rank))) late.add(rank);
  }
  return late;
}

int StoreGathering::lowest_on_node() {
  const std::string mine = node_of_this_process();
  const auto nodes = all(std::as_bytes(std::span(mine)));
  return static_cast<int>(std::ranges::find(nodes, nodes[static_cast<std::size_t>(rank_)]) - nodes.begin());
}

}  // namespace kolo

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {

/// One operation that this rank has asked for, from submit to completion.
///
/// The app thread fills it in; from PendingQueue::push() on it belongs to whoever holds the coordinator's role, but for `done`
/// and, once that is set, `failure`, which any thread may read.
struct Submission {
  using Clock = std::chrono::steady_clock;

  std::string name;
  std::shared_ptr<const GroupInfo> group;
  Signature signature;
  Tensor in, out;
  std::optional<Failure> failure;      ///< before: a bad argument, to be announced; after: how it failed
  std::optional<std::uint64_t> turn;   ///< of a barrier: its number among those of the group
  std::shared_ptr<const GroupInfo> subject;  ///< of remove_group; of make_group once it is done
  std::uint64_t occurrence = 0;        ///< how many operations of this name and group went before; equal on every rank
  std::uint64_t sequence = 0;          ///< position among this rank's submissions and flushes
  std::uint64_t flushed_at = 0;        ///< sequence of the first wait for it; 0 if nobody has waited
  bool flush_pushed = false;           ///< the program's first look at it is in the queue; its handle's thread only
  Clock::time_point submitted = Clock::now();
  std::atomic<bool> agreed{false};     ///< the ranks have decided to run it
  std::atomic<bool> done{false};
};

using SubmissionPtr = std::shared_ptr<Submission>;

}  // namespace kolo

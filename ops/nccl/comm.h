#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <kolo/group.h>

#include "ops/host/exchange.h"
#include "ops/nccl/rank.h"

namespace kolo {

/// A group's communicator in one lane, on this rank: made when the first bucket there needs it, and anew after it has
/// failed. Its id travels over the host; nothing waits. `rank`, `lane` and `group` outlive it.
///
/// One that blocks is made by a thread of kolo's, which also launches what NCCL (2.28) may do by an algorithm that is
/// new to it: it then connects the ranks, and waits for them. Other launches return at once, and go without the thread.
class LaneComm final {
 public:
  LaneComm(NcclRank& rank, NcclLane& lane, const GroupInfo& group) : rank_(rank), lane_(lane), group_(group) {}
  LaneComm(const LaneComm&) = delete;
  LaneComm& operator=(const LaneComm&) = delete;

  /// Goes on making the communicator; whether it is there. Throws Error{backend}.
  bool prepare(HostExchange& exchange);
  /// Takes part in prepare()'s exchange, if this rank has not come to it, and makes nothing.
  void skip_exchange(HostExchange& exchange);

  /// Puts calls on the lane's stream as one group. They are on it once settled() says so; nothing else may be called
  /// before. Throws Error{backend}.
  void launch(std::span<const NcclCall> calls, const NcclMethod& method);
  /// Whether what was launched is on the stream. Throws Error{backend}, also for errors of what ran before.
  bool settled();

  /// Aborts the communicator; the next bucket makes a new one.
  void recover();
  /// Whether nothing of what was on the streams then can touch tensors any more: true after a second at the latest.
  bool recovered() noexcept;
  void abort() noexcept;
  /// The communicator ends while the rank goes on. Nothing is called afterwards.
  void retire();

 private:
  enum class State { none, exchanging, initialising, ready };

  /// What NCCL chooses an algorithm by, beside the size: of sizes within a power of two there are two at most, one for
  /// the smaller ones and one for the larger.
  struct Algorithms {
    NcclCall::Kind kind;
    DType type;
    NcclOp op;
    bool scaled;  // by a PreMulSum
    int peer;
    int magnitude, magnitude_of_all;  // of the call's bytes, and of those of all that are launched with it
    auto operator<=>(const Algorithms&) const = default;
  };
  struct Sizes {
    std::uint64_t least, most;

    bool contain(std::uint64_t size) const { return size >= least && size <= most; }
    void extend_to(std::uint64_t size) {
      least = std::min(least, size);
      most = std::max(most, size);
    }
  };

  void exchange_id(HostExchange& exchange);
  void start_init();
  bool is_connected(std::span<const NcclCall> calls, const NcclMethod& method);
  void register_memory(const std::byte* data);
  NcclOp make_op(const NcclMethod& method);

  NcclRank& rank_;
  NcclLane& lane_;
  const GroupInfo& group_;
  State state_ = State::none;
  std::shared_ptr<const HostExchange::Answer> id_;  // null: its exchange has not been started
  NcclMember member_;
  std::shared_ptr<NcclComm> made_;                           // by the helper, which writes it
  NcclHelper helper_;                                        // of a communicator that blocks
  std::map<Algorithms, std::pair<Sizes, Sizes>> connected_;  // of what was launched: of calls, and of all together
  std::optional<NcclOp> made_op_;  // a PreMulSum, until the calls that use it are on the stream
  std::vector<std::shared_ptr<const DevicePoint>> drained_;  // of recover(): after what was on the streams then
  NcclHelper leaving_;  // which recover() found at work: what it launches comes later
  std::chrono::steady_clock::time_point recovered_by_{};
};

}  // namespace kolo

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <kolo/group.h>

#include "ops/host/exchange.h"
#include "ops/nccl/rank.h"

namespace kolo {

/// One group's communicator on this rank: made when the first bucket needs it, and anew after it has failed. Its id
/// travels over the host; nothing waits.
class NcclGroup final {
 public:
  NcclGroup(std::shared_ptr<NcclRank> rank, const GroupInfo& info, std::unique_ptr<Backend> host);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Goes on making the communicator; whether it is there. Throws Error{backend}.
  bool prepare();

  // Buckets of a group are launched in the order in which they were started. Between groups LaunchOrder decides, by
  // times that the members exchange unless there is no group but the world.
  std::uint64_t start(bool world_only) {
    if (!world_only) ++times_owed_;
    return started_++;
  }
  bool may_enter(std::uint64_t number) const { return number == entered_; }
  struct Turn {
    LaunchOrder::Turn place;
    std::shared_ptr<const HostExchange::Answer> answer;  // null: there is no group but the world
  };
  Turn enter(bool world_only);
  /// Whether everything that goes before has been launched.
  bool has_come(Turn& turn);
  void leave(const Turn& turn) { rank_->order.leave(turn.place); }

  /// Puts calls on the stream as one group. They are on it once settled() says so; nothing else may be called before.
  /// Throws Error{backend}.
  void launch(std::span<const NcclCall> calls, const NcclMethod& method);
  /// Whether what was launched is on the stream. Throws Error{backend}, also for errors of what ran before.
  bool settled();

  /// Aborts the communicator; the next bucket makes a new one.
  void recover();
  bool recovered() noexcept;
  void abandon() noexcept;

  int ranks() const { return info_.size(); }
  int rank() const { return info_.rank; }
  NcclRank& shared() { return *rank_; }
  const std::shared_ptr<NcclRank>& shared_rank() const { return rank_; }
  Backend& host() { return exchange_.host(); }

 private:
  enum class State { none, exchanging, initialising, ready };

  void exchange_id();
  void start_init();
  void end_comm() noexcept;
  void issue(const NcclCall& call, NcclOp op);
  void register_memory(const std::byte* data);
  NcclOp make_op(const NcclMethod& method);

  std::shared_ptr<NcclRank> rank_;
  GroupInfo info_;
  HostExchange exchange_;
  State state_ = State::none;
  std::shared_ptr<const HostExchange::Answer> id_;  // null: its exchange has not been started
  NcclMember member_;
  std::optional<NcclOp> made_op_;               // a PreMulSum, until the calls that use it are on the stream
  std::shared_ptr<const DevicePoint> drained_;  // of recover(): after what was on the stream then
  std::chrono::steady_clock::time_point recovered_by_{};
  std::uint64_t started_ = 0;
  std::uint64_t entered_ = 0;
  std::uint64_t times_owed_ = 0;  // exchanges of launch times that are still to be started: peers take part in them
  bool abandoned_ = false;
};

}  // namespace kolo

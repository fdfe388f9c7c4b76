#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <kolo/group.h>

#include "ops/host/exchange.h"
#include "ops/nccl/rank.h"
#include "ops/nccl/split.h"

namespace kolo {

/// One group's communicator on this rank: made when the first bucket needs it, and anew after it has failed. The id
/// travels over the host; nothing waits. Where `split` comes out of a larger group's communicator, on every member,
/// there is no need of an id.
class NcclGroup final {
 public:
  NcclGroup(std::shared_ptr<NcclRank> rank, const GroupInfo& info, std::unique_ptr<Backend> host,
            std::shared_ptr<NcclSplit> split = nullptr);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Goes on making the communicator; whether it is there. Throws OperationFault.
  bool prepare();

  // Buckets of a group take their turns in the order in which they were started.
  std::uint64_t start(bool alone) {
    if (!alone) ++ordered_started_;
    return started_++;
  }
  bool may_enter(std::uint64_t number) const { return number == entered_; }
  struct Turn {
    LaunchOrder::Turn place;
    std::shared_ptr<const HostExchange::Answer> answer;  // null: no other group could be in the way
  };
  Turn enter(bool alone);
  /// Whether everything that goes before has been launched.
  bool has_come(Turn& turn);
  void leave(const Turn& turn) { rank_->order.leave(turn.place); }
  /// A bucket that entered has run.
  void complete() { --unfinished_; }

  // Splits of this communicator: offered to members, in an agreed order, before their group is made; each has the turn
  // `number`, as buckets have.
  std::shared_ptr<NcclSplit> offer(const GroupInfo& group);
  std::shared_ptr<NcclSplit> take_offer(GroupId group);
  bool may_split(std::uint64_t number) const { return may_enter(number) && unfinished_ == 0; }
  /// Throws OperationFault.
  void begin_split(const std::shared_ptr<NcclSplit>& split);
  void end_split(NcclSplit& split);

  /// Puts calls on the stream as one group. They are on it once settled() says so; nothing else may be called before.
  /// Throws OperationFault.
  void launch(std::span<const NcclCall> calls, const NcclMethod& method);
  /// Whether what was launched is on the stream. Throws OperationFault, also for errors of what ran before.
  bool settled();

  /// The communicator is of no more use: ends what runs in it. `skipped` buckets were agreed and never started,
  /// `ordered` of them in an order agreed with other groups: their part in the exchanges is made up for. The next
  /// bucket makes a new communicator.
  void recover(std::size_t skipped, std::size_t ordered);
  void abandon() noexcept;

  int ranks() const { return info_.size(); }
  int rank() const { return info_.rank; }
  NcclRank& shared() { return *rank_; }
  const std::shared_ptr<NcclRank>& shared_rank() const { return rank_; }
  Backend& host() { return exchange_.host(); }
  std::uint64_t made() const { return made_; }  ///< communicators so far

 private:
  enum class State { none, telling, initialising, ready };

  void tell_id();
  void start_init();
  void abort(NcclComm& comm) noexcept;
  void end_comm() noexcept;
  void drain() noexcept;
  void drop_split() noexcept;
  void issue(const NcclCall& call, NcclOp op);
  void register_memory(const std::byte* data);
  NcclOp make_op(const NcclMethod& method);

  std::shared_ptr<NcclRank> rank_;
  GroupInfo info_;
  HostExchange exchange_;
  State state_ = State::none;
  bool told_ = false;  // how the communicator is to be made: the exchange has been started
  std::shared_ptr<const HostExchange::Answer> id_;
  std::shared_ptr<NcclSplit> split_;    // where this group's communicator may come from; until it has
  std::shared_ptr<NcclSplit> offered_;  // of another group's, which is made next
  std::shared_ptr<NcclSplit> under_way_;
  NcclComm comm_ = nullptr;
  std::optional<NcclOp> made_op_;  // until the calls that use it are on the stream
  std::vector<void*> enrolled_handles_;
  std::map<const std::byte*, std::shared_ptr<std::byte>> enrolled_;  // by where they begin
  std::uint64_t started_ = 0;
  std::uint64_t entered_ = 0;
  std::uint64_t unfinished_ = 0;       // of those
  std::uint64_t ordered_started_ = 0;  // of those whose order is agreed with other groups
  std::uint64_t ordered_entered_ = 0;
  std::uint64_t made_ = 0;
  bool abandoned_ = false;
};

}  // namespace kolo

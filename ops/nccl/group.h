#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/group.h>

#include "ops/host/exchange.h"
#include "ops/nccl/comm.h"

namespace kolo {

/// One group on this rank: its communicators, one for each lane, and when its buckets are launched. Nothing waits.
class NcclGroup final {
 public:
  NcclGroup(std::shared_ptr<NcclRank> rank, const GroupInfo& info, std::unique_ptr<Backend> host);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Buckets of a group are launched in the order in which they were started, whatever their lanes. Between groups
  // LaunchOrder decides, by times that the members exchange unless there is no group but the world.
  struct Turn {
    std::uint64_t number = 0;  ///< of the group's buckets
    std::size_t lane = 0;
    std::optional<LaunchOrder::Turn> place{};              ///< none: its time has not been proposed, or it has left
    std::shared_ptr<const HostExchange::Answer> answer{};  ///< null: nothing was exchanged

    /// Once it has come: whether `compared` of start() is the same on all members, and not 0.
    bool alike() const { return answer && answer->values[1] != 0 && answer->values[1] == ~answer->values[2]; }
  };
  /// `compared`: with the other members'. If one gives it, all do; with world_only, too.
  Turn start(std::size_t lane, bool world_only, std::optional<std::uint64_t> compared = std::nullopt);
  /// Whether the lane's communicator is there and everything that goes before has been launched, in both lanes. Throws
  /// Error{backend}.
  bool has_come(Turn& turn);
  /// It is launched, or never will be.
  void leave(Turn& turn);

  /// What buckets need: the rank's streams and, but for pairs, its pack buffer. Throws Error{backend}.
  std::shared_ptr<const void> reserve();

  LaneComm& comm(std::size_t lane) { return comms_[lane]; }

  /// Aborts the communicators; the next buckets make new ones.
  void recover();
  bool recovered() noexcept;
  void abandon() noexcept;

  int ranks() const { return info_.size(); }
  int rank() const { return info_.rank; }
  bool is_pair() const { return info_.is_pair(); }
  NcclRank& shared() { return *rank_; }
  const std::shared_ptr<NcclRank>& shared_rank() const { return rank_; }
  Backend& host() { return exchange_.host(); }

 private:
  struct Waiting {
    std::size_t lane;
    bool exchanges;
    std::vector<std::uint64_t> compared;  // besides the time
  };
  bool begin(Turn& turn);

  std::shared_ptr<NcclRank> rank_;
  GroupInfo info_;
  HostExchange exchange_;
  std::array<LaneComm, nccl_lanes> comms_;
  std::deque<Waiting> waiting_;  // buckets whose exchanges are still to be started: peers take part in them
  std::uint64_t begun_ = 0;      // the number of the first of these
  bool abandoned_ = false;
};

}  // namespace kolo

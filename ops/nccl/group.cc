#include "ops/nccl/group.h"

#include <algorithm>
#include <utility>

namespace kolo {

NcclGroup::NcclGroup(std::shared_ptr<NcclRank> rank, const GroupInfo& info, std::unique_ptr<Backend> host)
    : rank_(std::move(rank)),
      info_(info),
      exchange_(std::move(host)),
      comms_{LaneComm(*rank_, rank_->lanes[bulk_lane], info_), LaneComm(*rank_, rank_->lanes[urgent_lane], info_)} {}

/// Its communicators end while the rank goes on; those of the world's group with all others, before the rank is gone.
NcclGroup::~NcclGroup() {
  for (LaneComm& comm : comms_) comm.retire();
  if (info_.is_world()) abandoned_ ? rank_->retired.abort() : rank_->retired.finish();
}

NcclGroup::Turn NcclGroup::start(std::size_t lane, bool world_only) {
  Turn turn{.number = begun_ + waiting_.size(), .lane = lane};
  waiting_.push_back({lane, world_only});
  if (world_only) {
    turn.place = rank_->order.enter(info_.key());
    rank_->order.settle(*turn.place, (*turn.place)->time);
  }
  return turn;
}

/// In the order of start(), the same on all members, and so are their exchanges.
bool NcclGroup::begin(Turn& turn) {
  if (turn.number != begun_ || !comms_[turn.lane].prepare(exchange_)) return false;
  if (!turn.place) {
    turn.place = rank_->order.enter(info_.key());
    turn.answer = exchange_.largest({(*turn.place)->time});
  }
  waiting_.pop_front();
  ++begun_;
  return true;
}

bool NcclGroup::has_come(Turn& turn) {
  if (turn.number >= begun_ && !begin(turn)) return false;
  if (!(*turn.place)->settled) {
    exchange_.step();
    if (!turn.answer->complete) return false;
    rank_->order.settle(*turn.place, turn.answer->values.front());
  }
  return rank_->order.first(*turn.place);
}

void NcclGroup::leave(Turn& turn) {
  if (turn.place) rank_->order.leave(*turn.place);
  turn.place.reset();
}

/// Every rank takes part in every exchange, so this one starts those that it has not come to.
void NcclGroup::recover() {
  for (const auto& [lane, world_only] : waiting_) {
    comms_[lane].skip_exchange(exchange_);
    if (!world_only) exchange_.largest({0});
  }
  waiting_.clear();
  begun_ = 0;
  for (LaneComm& comm : comms_) comm.recover();
}

bool NcclGroup::recovered() noexcept {
  return std::ranges::count_if(comms_, [](LaneComm& comm) { return !comm.recovered(); }) == 0;
}

void NcclGroup::abandon() noexcept {
  if (std::exchange(abandoned_, true)) return;
  for (LaneComm& comm : comms_) comm.abort();
  if (info_.is_world()) rank_->retired.abort();
  exchange_.abandon();
}

}  // namespace kolo

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

std::shared_ptr<const void> NcclGroup::reserve() {
  if (!info_.is_pair()) return rank_->staging();
  rank_->open();
  return nullptr;
}

NcclGroup::Turn NcclGroup::start(std::size_t lane, bool world_only, std::optional<std::uint64_t> compared) {
  Turn turn{.number = begun_ + waiting_.size(), .lane = lane};
  const bool exchanges = !world_only || compared;
  waiting_.push_back({lane, exchanges, {}});
  if (compared) waiting_.back().compared = {*compared, ~*compared};  // alike if the largest of both are
  if (!exchanges) {
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
    std::vector<std::uint64_t> words = std::move(waiting_.front().compared);
    words.insert(words.begin(), (*turn.place)->time);
    turn.answer = exchange_.largest(std::move(words));
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
  for (const Waiting& one : waiting_) {
    comms_[one.lane].skip_exchange(exchange_);
    if (one.exchanges) exchange_.largest(std::vector<std::uint64_t>(1 + one.compared.size()));
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

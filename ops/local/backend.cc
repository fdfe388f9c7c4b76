// An operation on one rank: show the bucket; when all ranks have shown theirs, do this rank's share of the work (see
// LocalMethod); leave; when all ranks have left, the operation is complete.

#include "ops/local/backend.h"

#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "ops/local/board.h"
#include "ops/local/share.h"

namespace kolo {
namespace {

class LocalOperation final : public Operation {
 public:
  LocalOperation(std::shared_ptr<LocalBoard> board, StepBudget& budget, int rank, std::uint64_t number, Bucket bucket)
      : board_(std::move(board)),
        budget_(budget),
        rank_(rank),
        number_(number),
        bucket_(std::move(bucket)),
        share_(*board_, number_, rank_, bucket_) {
    if (board_->show(number_, rank_, bucket_)) state_ = State::shown;
  }
  LocalOperation(const LocalOperation&) = delete;
  LocalOperation& operator=(const LocalOperation&) = delete;
  ~LocalOperation() override {
    const bool complete = state_ == State::complete || (state_ == State::left && board_->all_left(number_));
    if (!complete) board_->break_up();
  }

  bool step() override;
  bool needs_polling() const override { return false; }
  bool moved() const override { return moved_; }

 private:
  enum class State { waiting_for_slot, shown, left, complete };

  std::shared_ptr<LocalBoard> board_;
  StepBudget& budget_;  // of the backend
  std::uint64_t round_ = 0;
  bool moved_ = false;  // at the last step
  int rank_;
  std::uint64_t number_;
  Bucket bucket_;
  LocalShare share_;
  State state_ = State::waiting_for_slot;
};

bool LocalOperation::step() {
  moved_ = false;
  if (state_ == State::complete) return true;
  if (state_ == State::left && board_->all_left(number_)) {
    state_ = State::complete;
    return true;
  }
  if (board_->broken()) throw Error(ErrorCode::aborted, "a rank of the group left before the operation was complete");
  if (state_ == State::waiting_for_slot && board_->show(number_, rank_, bucket_)) state_ = State::shown;
  if (state_ == State::shown && board_->all_shown(number_)) {
    for (int rank = 0; bucket_.token != 0 && rank < board_->ranks(); ++rank) {
      if (board_->token(number_, rank) != bucket_.token) throw_other_token();
    }
    budget_.begin(round_);
    moved_ = !share_.proceed(budget_);
    if (moved_) return false;
    board_->leave(number_);
    state_ = board_->all_left(number_) ? State::complete : State::left;
  }
  return state_ == State::complete;
}

/// The boards of a world of threads and of its groups: whoever comes first makes one, the other members find it.
class LocalWorld final {
 public:
  explicit LocalWorld(std::span<Doorbell> doorbells) : doorbells_(doorbells) {}

  std::shared_ptr<LocalBoard> board(const GroupInfo& group) {
    const std::lock_guard lock(mutex_);
    if (auto known = boards_[group.key()].lock()) return known;
    if (boards_.size() > room_) {
      std::erase_if(boards_, [](const auto& entry) { return entry.second.expired(); });
      room_ = 2 * boards_.size() + 16;
    }
    std::vector<Doorbell*> doorbells;
    for (int rank : group.ranks) {
      if (!doorbells_.empty()) doorbells.push_back(&doorbells_[static_cast<std::size_t>(rank)]);
    }
    // In a piece of memory of its own, which does not wait for the entry here.
    std::shared_ptr<LocalBoard> board(new LocalBoard(group.size(), std::move(doorbells)));
    boards_[group.key()] = board;
    return board;
  }

 private:
  std::mutex mutex_;
  std::span<Doorbell> doorbells_;
  std::map<GroupKey, std::weak_ptr<LocalBoard>> boards_;
  std::size_t room_ = 16;  // number of entries from which those of removed groups are erased
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalWorld> world, const GroupInfo& group)
      : world_(std::move(world)), board_(world_->board(group)), rank_(group.rank) {}

  std::string_view name() const override { return "local"; }
  bool compares_tokens() const override { return true; }
  bool supports(const Signature& signature) const override {
    return signature.device == DeviceKind::cpu && local_method(signature.kind) && reducible(signature);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<LocalOperation>(board_, budget_, rank_, started_++, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    return std::make_unique<LocalBackend>(world_, group);
  }
  void abandon() noexcept override { board_->break_up(); }

 private:
  std::shared_ptr<LocalWorld> world_;
  std::shared_ptr<LocalBoard> board_;
  int rank_;
  std::uint64_t started_ = 0;
  StepBudget budget_;
};

}  // namespace

std::vector<std::unique_ptr<Backend>> local_backends(int ranks, std::span<Doorbell> doorbells) {
  const auto world = std::make_shared<LocalWorld>(doorbells);
  GroupInfo world_info;
  world_info.ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(world_info.ranks.begin(), world_info.ranks.end(), 0);
  std::vector<std::unique_ptr<Backend>> backends;
  for (world_info.rank = 0; world_info.rank < ranks; ++world_info.rank) {
    backends.push_back(std::make_unique<LocalBackend>(world, world_info));
  }
  return backends;
}

}  // namespace kolo

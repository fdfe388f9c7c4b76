// An operation on one rank: show the bucket; when all ranks have shown theirs, serve slice r of the flattened elements
// (reduce it from all ranks' inputs, or copy it from the root's input, into all ranks' outputs); leave; when all ranks
// have left, the operation is complete. Rank r alone touches slice r, of everybody's memory, so inputs and outputs may
// be the same.

#include "ops/local_backend.h"

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "ops/bucket.h"
#include "ops/local_board.h"
#include "ops/reduce.h"

namespace kolo {
namespace {

// Between two chunks a rank looks whether the board is broken: the longest that a peer's destructor has to wait.
constexpr std::int64_t chunk_elements = 1 << 16;

class LocalOperation final : public Operation {
 public:
  LocalOperation(std::shared_ptr<LocalBoard> board, int rank, std::uint64_t number, Bucket bucket)
      : board_(std::move(board)), rank_(rank), number_(number), bucket_(std::move(bucket)) {
    sources_.resize(static_cast<std::size_t>(board_->ranks()));
    destinations_.resize(static_cast<std::size_t>(board_->ranks()));
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

 private:
  enum class State { waiting_for_slot, shown, left, complete };

  void serve_slice();
  void serve(const Piece& piece);
  void reduce_chunk(const Piece& chunk);
  void broadcast_chunk(const Piece& chunk);
  const BucketTensor& tensor(std::size_t rank, std::size_t index) const {
    return board_->shown(number_, static_cast<int>(rank)).tensors[index];
  }
  [[noreturn]] static void fail_aborted() {
    throw Error(ErrorCode::aborted, "a rank of the group left before the operation was complete");
  }

  std::shared_ptr<LocalBoard> board_;
  int rank_;
  std::uint64_t number_;
  Bucket bucket_;
  std::vector<const void*> sources_;  // of one chunk; kept so that chunks need no allocation
  std::vector<void*> destinations_;
  State state_ = State::waiting_for_slot;
};

bool LocalOperation::step() {
  if (state_ == State::complete) return true;
  if (state_ == State::left && board_->all_left(number_)) {
    state_ = State::complete;
    return true;
  }
  if (board_->broken()) fail_aborted();
  if (state_ == State::waiting_for_slot && board_->show(number_, rank_, bucket_)) state_ = State::shown;
  if (state_ == State::shown && board_->all_shown(number_)) {
    serve_slice();
    board_->leave(number_);
    state_ = board_->all_left(number_) ? State::complete : State::left;
  }
  return state_ == State::complete;
}

void LocalOperation::serve_slice() {
  const std::size_t bytes = size_of(bucket_.signature.dtype);
  const Slice slice = slice_of(bucket_.elements(), bytes, board_->ranks(), rank_);
  for_each_piece(bucket_, position_at(bucket_, slice.begin), slice.count(), [&](const Piece& piece) {
    for (std::int64_t begin = 0; begin < piece.count; begin += chunk_elements) {
      serve({piece.tensor, piece.offset + begin, std::min(chunk_elements, piece.count - begin)});
    }
  });
}

void LocalOperation::serve(const Piece& piece) {
  if (!board_->enter(rank_)) fail_aborted();
  if (bucket_.signature.kind == OpKind::broadcast)
    broadcast_chunk(piece);
  else
    reduce_chunk(piece);
  board_->exit(rank_);
}

void LocalOperation::reduce_chunk(const Piece& chunk) {
  for (std::size_t rank = 0; rank < sources_.size(); ++rank) {
    sources_[rank] = address(tensor(rank, chunk.tensor).in, chunk.offset);
    destinations_[rank] = address(tensor(rank, chunk.tensor).out, chunk.offset);
  }
  reduce(reduction_of(bucket_.signature, board_->ranks()), sources_, destinations_,
         static_cast<std::size_t>(chunk.count));
}

void LocalOperation::broadcast_chunk(const Piece& chunk) {
  const auto root = static_cast<std::size_t>(bucket_.signature.root);
  const std::byte* source = address(tensor(root, chunk.tensor).in, chunk.offset);
  const std::size_t bytes = static_cast<std::size_t>(chunk.count) * size_of(bucket_.signature.dtype);
  for (std::size_t rank = 0; rank < destinations_.size(); ++rank) {
    std::byte* destination = address(tensor(rank, chunk.tensor).out, chunk.offset);
    if (destination != source) std::memcpy(destination, source, bytes);
  }
}

/// The boards of a world of threads and of its groups: whoever comes first makes one, the other members find it.
class LocalWorld final {
 public:
  explicit LocalWorld(std::span<Bell> bells) : bells_(bells) {}

  std::shared_ptr<LocalBoard> board(const GroupInfo& group) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<LocalBoard>& known = boards_[group.id];
    auto board = known.lock();
    if (board) return board;
    std::vector<Bell*> bells;
    for (int rank : group.ranks) {
      if (!bells_.empty()) bells.push_back(&bells_[static_cast<std::size_t>(rank)]);
    }
    board = std::make_shared<LocalBoard>(group.size(), std::move(bells));
    known = board;
    return board;
  }

 private:
  std::mutex mutex_;
  std::span<Bell> bells_;
  std::map<GroupId, std::weak_ptr<LocalBoard>> boards_;
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalWorld> world, const GroupInfo& group)
      : world_(std::move(world)), board_(world_->board(group)), rank_(group.rank) {}

  std::string_view name() const override { return "local"; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cpu) return false;
    if (signature.kind == OpKind::broadcast) return true;
    return signature.kind == OpKind::all_reduce && reducible(signature.op, signature.dtype);
  }
  std::unique_ptr<Operation> start(Bucket bucket) override {
    return std::make_unique<LocalOperation>(board_, rank_, started_++, std::move(bucket));
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
};

}  // namespace

std::vector<std::unique_ptr<Backend>> local_backends(int ranks, std::span<Bell> bells) {
  const auto world = std::make_shared<LocalWorld>(bells);
  GroupInfo everybody;
  everybody.ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(everybody.ranks.begin(), everybody.ranks.end(), 0);
  std::vector<std::unique_ptr<Backend>> backends;
  for (everybody.rank = 0; everybody.rank < ranks; ++everybody.rank) {
    backends.push_back(std::make_unique<LocalBackend>(world, everybody));
  }
  return backends;
}

}  // namespace kolo

#include "ops/two_level/operation.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kolo {
namespace {

/// Scales the rule, which counts bytes of the carried type in all cells that blocks may be padded to.
ChunkRule rule_for(const TwoLevels& levels, const Signature& signature) {
  const auto ratio =
      static_cast<std::int64_t>(size_of(TwoLevelFlight::carried_by(signature)) / size_of(signature.dtype));
  const std::int64_t ranks = levels.placement.ranks_in_all();
  const std::int64_t cells = has_blocks(signature.kind) ? static_cast<std::int64_t>(levels.placement.cells()) : ranks;
  return {levels.rule.largest / ratio * ranks / cells, levels.rule.direct / ratio};
}

}  // namespace

TwoLevelOperation::TwoLevelOperation(std::shared_ptr<TwoLevels> levels, Bucket bucket)
    : levels_(std::move(levels)), bucket_(std::move(bucket)) {
  const ChunkRule rule = rule_for(*levels_, bucket_.signature);
  const int ranks = levels_->placement.ranks_in_all();
  for (Chunk chunk = chunk_at(bucket_, ranks, {}, rule); chunk.count > 0;
       chunk = chunk_at(bucket_, ranks, chunk.next, rule)) {
    chunks_.emplace_back(*levels_, bucket_, chunk);
  }
}

bool TwoLevelOperation::needs_polling() const {
  return std::ranges::any_of(chunks_, [](const TwoLevelFlight& flight) { return flight.needs_polling(); });
}

/// Of what is complete.
const char* TwoLevelOperation::method() const {
  const char* method = "";
  for (const TwoLevelFlight& flight : chunks_) {
    if (*flight.moved_by() != '\0' && !std::string_view(method).starts_with("trial:")) method = flight.moved_by();
  }
  return method;
}

bool TwoLevelOperation::step() {
  using Stage = TwoLevelFlight::Stage;
  moved_ = false;
  levels_->budget.begin(round_);
  for (bool moved = true; moved && !levels_->budget.spent(); moved_ |= moved) {
    moved = false;
    for (std::size_t i = complete_; i < gathered_ && !levels_->budget.spent(); ++i) moved |= chunks_[i].advance(moved_);
    while (exchanged_ < gathered_ && chunks_[exchanged_].stage() == Stage::gathered) {
      chunks_[exchanged_++].exchange();
      moved = true;
    }
    moved |= !levels_->budget.spent() && start_next();
    while (complete_ < chunks_.size() && chunks_[complete_].stage() == Stage::complete) ++complete_;
  }
  moved_ |= levels_->budget.spent();
  return complete_ == chunks_.size();
}

/// Starts the next collectives within the node, if their turn has come: the same ones on all ranks of the node.
bool TwoLevelOperation::start_next() {
  const bool gather_first = gathered_ < chunks_.size() && gathered_ <= spread_ + TwoLevels::ahead;
  if (gather_first) {
    TwoLevelFlight& next = chunks_[gathered_];
    const bool no_staging = next.staged() && levels_->staged_chunks == TwoLevels::most_in_flight;
    if (gathered_ >= complete_ + TwoLevels::most_in_flight || no_staging) return false;
    next.gather();
    ++gathered_;
    return true;
  }
  if (spread_ == chunks_.size() || chunks_[spread_].stage() != TwoLevelFlight::Stage::exchanged) return false;
  chunks_[spread_++].spread();
  return true;
}

}  // namespace kolo

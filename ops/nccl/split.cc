#include "ops/nccl/split.h"

#include <utility>

#include "ops/nccl/group.h"

namespace kolo {

bool NcclSplitting::step() {
  if (!number_) number_ = group_->start(true);
  if (!group_->prepare()) return false;
  if (!begun_ && !group_->may_split(*number_)) return false;
  if (!std::exchange(begun_, true)) group_->begin_split(split_);
  if (!group_->settled()) return false;
  group_->end_split(*split_);
  return true;
}

}  // namespace kolo

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <kolo/backend.h>

#include "ops/nccl/table.h"

namespace kolo {

class NcclGroup;

/// A communicator of some ranks, on its way out of one of more: what one rank of the larger knows of it.
struct NcclSplit {
  GroupId group = 0;
  int key = -1;             ///< this rank in the smaller; -1: none
  NcclComm comm = nullptr;  ///< NCCL may write it until the larger one is in progress no more, or aborted
  enum class State { coming, made, failed } state = State::coming;
  bool wanted = true;  ///< the smaller group is still there
};

/// Splits a group's communicator for another group: a turn of its own among the group's buckets. Those before must have
/// run to their end, those after wait for it.
class NcclSplitting final : public Operation {
 public:
  NcclSplitting(std::shared_ptr<NcclGroup> group, std::shared_ptr<NcclSplit> split)
      : group_(std::move(group)), split_(std::move(split)) {}
  ~NcclSplitting() override {
    if (split_->state == NcclSplit::State::coming) split_->state = NcclSplit::State::failed;
  }
  NcclSplitting(const NcclSplitting&) = delete;
  NcclSplitting& operator=(const NcclSplitting&) = delete;

  bool step() override;
  bool needs_polling() const override { return true; }

 private:
  std::shared_ptr<NcclGroup> group_;
  std::shared_ptr<NcclSplit> split_;
  std::optional<std::uint64_t> number_;
  bool begun_ = false;
};

}  // namespace kolo

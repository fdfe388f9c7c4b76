#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>

#include <kolo/session.h>

#include "apps/train/checkpoints.h"
#include "apps/train/requests.h"

namespace kolo::train {

/// What the ranks say to each other in the midst of something long that has parts, as they do with each step's totals:
/// whether one was asked to stop, or failed, and which parts of a checkpoint are on disk.
class Midway {
 public:
  /// Whether to go on with another part. What it answers was said before the part that is now done: nobody waits for
  /// it.
  using GoesOn = std::function<bool()>;

  /// All must outlive this.
  Midway(Session& session, CheckpointWriter& checkpoints, const Requests& requests)
      : session_(&session), checkpoints_(&checkpoints), requests_(&requests) {}

  /// Runs `work`, which calls `goes_on` before each of its parts and ends, on all ranks behind the same part, once that
  /// is false. Returns whether all of it was done. Collective.
  ///
  /// parts  calls of `goes_on`: the same number on every rank, some of which may call it less often
  /// Errors: Error; UsageError, reported, if `work` throws on a rank.
  bool run(std::int64_t parts, const std::function<void(const GoesOn& goes_on)>& work);

  /// Whether some rank was asked to stop. Collective.
  bool any_stops();

 private:
  bool goes_on(bool failed);
  bool hear();

  Session* session_;
  CheckpointWriter* checkpoints_;
  const Requests* requests_;
  std::int64_t said_ = 0;
  bool stopped_ = false;
  std::array<double, 4> totals_{};  // who stops, has failed, has its part of a checkpoint on disk, has lost it
  Handle handle_;                   // last, so that it ends before its memory does
};

}  // namespace kolo::train

#include "runtime/executor.h"

#include <algorithm>

#include "ops/adasum.h"

namespace kolo {

bool Executor::supports(const Signature& signature) const {
  if (!moves_data(signature.kind)) return true;
  return std::any_of(backends_.begin(), backends_.end(), [&](const auto& backend) {
    return backend->supports(signature) || serves_adasum(*backend, signature);
  });
}

BackendList Executor::backends_for(const GroupInfo& group) const {
  BackendList made;
  for (const auto& backend : backends_) {
    if (auto mine = backend->for_group(group)) made.push_back(std::move(mine));
  }
  return made;
}

void Executor::start(std::vector<SubmissionPtr> members) { running_.push_back({std::move(members), nullptr}); }

std::unique_ptr<Operation> Executor::start_on_backend(const std::vector<SubmissionPtr>& members) {
  const Signature& signature = members.front()->signature;
  Bucket bucket{signature, {}};
  for (const SubmissionPtr& member : members) bucket.tensors.push_back({member->in, member->out});
  for (const auto& backend : backends_) {
    if (!backend->supports(signature)) continue;
    ++buckets_started_;
    return backend->start(std::move(bucket));
  }
  for (const auto& backend : backends_) {
    if (!serves_adasum(*backend, signature)) continue;
    ++buckets_started_;
    return start_adasum(*backend, std::move(bucket), ranks_, rank_);
  }
  throw Error(ErrorCode::backend, "no backend runs " + to_string(signature) + ", though the ranks agreed to");
}

bool Executor::step(std::vector<Finished>& finished) {
  if (halted_) return false;
  bool any = false;
  bool held = false;
  for (Running& running : running_) {
    if (running.members.front()->signature.kind != OpKind::barrier) {
      if (!running.operation && held) continue;
      if (!running.operation) running.operation = start_on_backend(running.members);
      if (!running.operation->step()) {
        held |= running.operation->holds_backend();
        continue;
      }
      running.operation.reset();
    }
    for (SubmissionPtr& member : running.members) finished.push_back({std::move(member), std::nullopt});
    running.members.clear();
    any = true;
  }
  if (any) std::erase_if(running_, [](const Running& running) { return running.members.empty(); });
  return any;
}

void Executor::abandon(const Failure& failure, std::vector<Finished>& finished) {
  for (Running& running : running_) {
    const bool complete = !halted_ && completes_now(running);
    for (SubmissionPtr& member : running.members) {
      finished.push_back({std::move(member), complete ? std::nullopt : std::optional(failure)});
    }
  }
  for (const auto& backend : backends_) backend->abandon();
  running_.clear();
}

/// Whether only this rank has not noticed yet that the operation is complete: a peer that saw so may leave at once.
bool Executor::completes_now(Running& running) noexcept {
  if (running.members.front()->signature.kind == OpKind::barrier) return true;
  try {
    return running.operation && running.operation->step();
  } catch (const std::exception&) {
    return false;
  }
}

bool Executor::needs_polling() const {
  return !halted_ && std::any_of(running_.begin(), running_.end(), [](const Running& running) {
    return running.operation && running.operation->needs_polling();
  });
}

}  // namespace kolo

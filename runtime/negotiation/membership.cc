#include "runtime/negotiation/membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/operation/arguments.h"

namespace kolo {

bool Membership::join(int rank) {
  joined_.add(rank);
  last_to_join_ = rank;
  const bool all = joined_.size() == group_->size();
  if (all) joined_ = {};
  return all;
}

std::vector<int> Membership::absent() const {
  if (joined_.empty()) return {};
  std::vector<int> ranks;
  for (int i = 0; i < group_->size(); ++i) {
    if (joined_.contains(group_->ranks[static_cast<std::size_t>(i)])) ranks.push_back(i);
  }
  return ranks;
}

void Membership::leave(int rank, std::uint64_t begun) {
  if (left_.empty()) first_left_ = rank;  // the same on every rank, whoever leaves next
  left_.add(rank);
  last_begun_ = std::min(last_begun_, begun);
}

Failure Membership::left_failure() const {
  return {ErrorCode::closed, fmt::format("group {}: {} closed the session (its operations need every rank); close "
                                         "sessions when all ranks are done",
                                         group_->name, to_string(RankSet{first_left_}))};
}

Failure Membership::left_failure(const Request& request) const {
  return {
      ErrorCode::closed,
      fmt::format("{}: {} closed the session (the operation needs every rank of the group); close sessions when all "
                  "ranks are done",
                  describe(request.signature.kind, request.name(), group_->name), to_string(RankSet{first_left_}))};
}

std::optional<Failure> Membership::unfit(const Signature& signature) const {
  if (joined_.empty()) return std::nullopt;
  if (signature.kind == OpKind::remove_group) {
    return Failure{ErrorCode::invalid_argument,
                   fmt::format("{} joined, and a group is removed by all its ranks; remove it before any joins",
                               to_string(joined_))};
  }
  if (!has_root(signature.kind)) return std::nullopt;
  if (signature.root < 0 || signature.root >= group_->size())
    throw Error(ErrorCode::backend, "malformed control message (a root that is no rank)");
  const int root = group_->ranks[static_cast<std::size_t>(signature.root)];
  if (!joined_.contains(root)) return std::nullopt;
  return Failure{ErrorCode::invalid_argument,
                 fmt::format("the root, rank {}, has joined and takes part no more; choose one that has not", root)};
}

}  // namespace kolo

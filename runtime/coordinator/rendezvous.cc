#include "runtime/coordinator/rendezvous.h"

#include <kolo/detail/hash.h>

#include <algorithm>
#include <utility>

#include "ops/bucket.h"
#include "runtime/operation/arguments.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {

bool Rendezvous::needed(const Submission& submission, const Backend* runner) {
  const Request& request = submission.request;
  const auto has_elements = [](const BucketTensor& tensor) { return tensor.in.elements() > 0; };
  const bool compares = runner && runner->compares_tokens() && runner->supports(request.signature);  // not in stages
  return !compares || !request.sizes.empty() ||
         std::ranges::none_of(request.tensors, has_elements);  // else there is nothing that would say so
}

Rendezvous::Rendezvous(Backend& host, SubmissionPtr submission, std::uint64_t token)
    : host_(host),
      submission_(std::move(submission)),
      token_(token),
      compared_(host.compares_tokens() && !submission_->request.sizes.empty()) {
  exchange(compared_ ? submission_->pending.sizes : std::vector<std::int64_t>{static_cast<std::int64_t>(token)});
}

/// Gathers numbers, as many of each rank.
void Rendezvous::exchange(std::vector<std::int64_t> mine) {
  mine_ = std::move(mine);
  all_.resize(mine_.size() * static_cast<std::size_t>(submission_->request.group->size()));
  bucket_ = {};
  bucket_.signature = gathering();
  bucket_.signature.shape = view(mine_).shape;
  bucket_.token = detail::mixed(token_ + mine_.size()) | 1;
  bucket_.tensors.push_back({view(mine_), view(all_)});
  operation_ = host_.start(bucket_);
}

bool Rendezvous::step() {
  while (operation_->step()) {
    operation_.reset();
    const bool first = !std::exchange(compared_, true);
    if (first) compare();
    if (first && !submission_->request.sizes.empty()) {
      exchange(submission_->pending.sizes);
      continue;
    }
    if (!submission_->request.sizes.empty()) take_sizes();
    return true;
  }
  return false;
}

void Rendezvous::compare() const {
  const auto mine = static_cast<std::int64_t>(token_);
  if (!std::ranges::all_of(all_, [&](std::int64_t token) { return token == mine; })) throw_other_token();
}

void Rendezvous::take_sizes() {
  const Request& request = submission_->request;
  std::vector<std::vector<std::int64_t>> of_rank;
  const auto length = static_cast<std::ptrdiff_t>(mine_.size());
  for (auto begin = all_.begin(); begin != all_.end(); begin += length) of_rank.emplace_back(begin, begin + length);
  const AgreedRows rows(request.signature.kind, std::move(of_rank), {}, request.group->rank);
  failure_ = check_sizes(rows.sizes(), *request.group);
  if (failure_) {
    failure_->message = describe(request) + ": " + failure_->message;
    return;
  }
  set_agreed_rows(*submission_, rows);
  if (!request.allocate) return;
  const auto& ranks = request.group->ranks;
  if (const auto failed = allocate_outputs(*submission_, ranks[static_cast<std::size_t>(request.group->rank)]))
    throw Error(*failed);
}

std::vector<int> nodes_apart(const Topology& topology, const BackendList& backends) {
  std::vector<int> nodes;
  const auto meets = [](const auto& backend) { return backend->supports(Rendezvous::gathering()); };
  if (std::ranges::any_of(backends, meets)) return nodes;
  for (const Topology::Place& place : topology.places) nodes.push_back(place.node);
  return nodes;
}

}  // namespace kolo

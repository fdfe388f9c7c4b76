#include "ops/mpi/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kolo {
namespace {

int largest_tag(MPI_Comm comm) {
  const int* value = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &known), "MPI_Comm_get_attr");
  return known ? *value : 32767;  // what every MPI has
}

/// Not by MPI_Testall(), which looks before it lets MPI go on, and not afterwards.
bool all_complete(std::vector<MPI_Request>& requests) {
  for (; !requests.empty(); requests.pop_back()) {
    int done = 0;
    check_mpi(MPI_Test(&requests.back(), &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
  }
  return true;
}

}  // namespace

MpiChannel::MpiChannel(MPI_Comm comm, const MpiTuning& tuning)
    : tuning_(tuning), comm_(duplicate(comm)), staging_(2 * tuning.in_flight) {
  check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_.get(), &ranks_), "MPI_Comm_size");
  blocks_ = (static_cast<std::uint64_t>(largest_tag(comm_.get())) + 1) / chunk_tags - 1;
  staging_.reserve(2, buffer_bytes());
}

MpiChannel::~MpiChannel() {
  if (abandoned_) (void)comm_.release();
}

MpiGroup::MpiGroup(std::shared_ptr<MpiChannel> channel)
    : channel_(std::move(channel)),
      members_(static_cast<std::size_t>(channel_->ranks())),
      rank_(channel_->rank()),
      name_("world"),
      block_(0),
      first_tag_(MpiChannel::chunk_tags) {
  std::iota(members_.begin(), members_.end(), 0);
}

MpiGroup::MpiGroup(std::shared_ptr<MpiChannel> channel, const GroupInfo& group, std::vector<int> members)
    : channel_(std::move(channel)),
      members_(std::move(members)),
      rank_(group.rank),
      name_(group.name),
      block_(channel_->tag_block(group.id)),
      first_tag_(static_cast<int>((block_ + 1) * MpiChannel::chunk_tags)) {
  const auto [first, last] = channel_->groups_.equal_range(block_);
  const auto other = std::find_if(first, last, [&](const auto& live) { return meets(*live.second); });
  if (other != last) {
    throw Error(
        ErrorCode::backend,
        fmt::format("group {} has no tags for its MPI messages (those of its number are in use by group {}, and MPI "
                    "has tags for {} groups); remove group {} first",
                    name_, other->second->name_, channel_->tag_blocks(), other->second->name_));
  }
  channel_->groups_.emplace(block_, this);
}

MpiGroup::~MpiGroup() {
  const auto [first, last] = channel_->groups_.equal_range(block_);
  const auto mine = std::find_if(first, last, [this](const auto& live) { return live.second == this; });
  if (mine != last) channel_->groups_.erase(mine);
}

/// Whether another rank is in both groups.
bool MpiGroup::meets(const MpiGroup& other) const {
  return std::ranges::any_of(members_, [&](int member) {
    return member != channel_->rank() && std::ranges::find(other.members_, member) != other.members_.end();
  });
}

void MpiMessages::send(MPI_Comm comm, int to, int tag, const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  MPI_Request& request = sends_.emplace_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm, &request), "MPI_Isend");
}

void MpiMessages::receive(MPI_Comm comm, int from, int tag, std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  MPI_Request& request = receives_.emplace_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm, &request), "MPI_Irecv");
}

bool MpiMessages::arrived() {
  return all_complete(receives_) && all_complete(sends_);
}

void MpiMessages::cancel() noexcept {
  for (MPI_Request& request : receives_) {
    if (request != MPI_REQUEST_NULL) (void)MPI_Cancel(&request);
  }
}

bool MpiMessages::finished_by(std::chrono::steady_clock::time_point deadline) noexcept {
  try {
    bool received = all_complete(receives_);
    while (!received && std::chrono::steady_clock::now() < deadline) received = all_complete(receives_);
    return received && all_complete(sends_);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace kolo

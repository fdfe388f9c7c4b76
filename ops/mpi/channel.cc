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

std::vector<int> all_of(const MpiChannel& channel) {
  std::vector<int> ranks(static_cast<std::size_t>(channel.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

MpiChannel::MpiChannel(MPI_Comm comm, const MpiTuning& tuning, RankPlaces places)
    : tuning_(tuning), places_(std::move(places)), comm_(duplicate(comm)), staging_(2 * tuning.in_flight) {
  check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_.get(), &ranks_), "MPI_Comm_size");
  const auto blocks = (static_cast<std::uint64_t>(largest_tag(comm_.get())) + 1) / chunk_tags;
  blocks_of_rank_ = (blocks - 2) / static_cast<std::uint64_t>(ranks_);  // pairs have the first, the world the second
  staging_.reserve(2, buffer_bytes());
}

MpiChannel::~MpiChannel() {
  if (abandoned_) (void)comm_.release();
}

std::uint64_t MpiChannel::take_block(const std::string& group) {
  if (taken_.size() >= blocks_of_rank_) {
    throw Error(ErrorCode::backend,
                fmt::format("group {} has no tags for its MPI messages (rank {} is the first of {} groups, and MPI has "
                            "no tags for more); remove one first",
                            group, rank_, taken_.size()));
  }
  const auto block = [this] {
    return 1 + next_ * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank_);
  };
  do next_ = (next_ + 1) % blocks_of_rank_;
  while (!taken_.insert(block()).second);
  return block();
}

MpiGroup::MpiGroup(std::shared_ptr<MpiChannel> channel)
    : channel_(std::move(channel)),
      members_(all_of(*channel_)),
      association_(channel_->places(), members_),
      rank_(channel_->rank()),
      name_("world") {}

MpiGroup::MpiGroup(std::shared_ptr<MpiChannel> channel, const GroupInfo& group, std::vector<int> members)
    : channel_(std::move(channel)),
      members_(std::move(members)),
      association_(channel_->places(), members_),
      rank_(group.rank),
      name_(group.name) {}

MpiGroup::~MpiGroup() {
  if (gave_tags_) channel_->give_back(block_);
}

Introduction MpiGroup::introduction() {
  if (rank_ != 0) return {};
  block_ = channel_->take_block(name_);
  gave_tags_ = true;
  return {static_cast<std::int64_t>(block_)};
}

void MpiGroup::introduce(std::span<const Introduction> members) {
  if (members.empty() || members[0].size() != 1)
    throw Error(ErrorCode::backend, "malformed introduction (of a group's tags)");
  block_ = static_cast<std::uint64_t>(members[0][0]);
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

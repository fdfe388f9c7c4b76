#include "runtime/control/mpi.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>

#include "ops/mpi_base/region.h"

namespace kolo {
namespace {

constexpr int control_tag = 1;

MpiComm split_by_node(MPI_Comm comm, int color) {
  MPI_Comm node = MPI_COMM_NULL;
  if (color < 0) {
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  } else {
    check_mpi(MPI_Comm_split(comm, color, 0, &node), "MPI_Comm_split");
  }
  MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN);
  return MpiComm(node);
}

}  // namespace

MpiChannel::MpiChannel(MPI_Comm comm, std::string_view fake, std::string* note)
    : comm_(duplicate(comm)), usable_(comm_.get()) {
  int size = 0;
  check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_.get(), &size), "MPI_Comm_size");
  MpiComm node = split_by_node(comm_.get(), -1);
  find_places(node.get());
  if (!fake.empty()) {
    fake_nodes(topology_, fake);
    node = split_by_node(comm_.get(), topology_.places[static_cast<std::size_t>(rank_)].node);
  }
  int shared = share_memory(node.get()) ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, comm_.get()), "MPI_Allreduce");
  if (shared == 0) {
    if (note)
      *note = "ranks of a node cannot share memory (see /proc/sys/kernel/yama and the container's settings); using MPI";
    for (int rank = 0; rank < size; ++rank) topology_.places[static_cast<std::size_t>(rank)].node = rank;
    share_memory(MPI_COMM_SELF);
  }
  exchange_addresses();
}

/// The last messages of a send/recv pair may still be in flight to a rank that has left. MPI would deliver them to the
/// next communicator that gets this one's id, so a communicator that spans nodes is never freed.
MpiChannel::~MpiChannel() {
  if (topology_.nodes() > 1) (void)comm_.release();
}

/// Every rank learns the host, process and node of all ranks; a node is identified by its lowest rank.
void MpiChannel::find_places(MPI_Comm node_comm) {
  struct Entry {
    std::int32_t lowest;
    std::int32_t pid;
    std::array<char, 56> host;
  } mine{};
  mine.lowest = rank_;
  mine.pid = static_cast<std::int32_t>(getpid());
  gethostname(mine.host.data(), mine.host.size() - 1);
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &mine.lowest, 1, MPI_INT32_T, MPI_MIN, node_comm), "MPI_Allreduce");
  int size = 0;
  check_mpi(MPI_Comm_size(comm_.get(), &size), "MPI_Comm_size");
  std::vector<Entry> all(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&mine, sizeof(Entry), MPI_BYTE, all.data(), sizeof(Entry), MPI_BYTE, comm_.get()),
            "MPI_Allgather");
  std::map<std::int32_t, int> node_of;  // lowest rank → node; ranks are visited in order, so nodes come out ordered too
  for (const Entry& entry : all) {
    const int node = node_of.emplace(entry.lowest, static_cast<int>(node_of.size())).first->second;
    topology_.places.push_back({node, entry.host.data(), entry.pid});
  }
}

/// The lowest rank of the node makes a region and the others map it; a rank alone on its node uses its heap. Returns
/// false if that failed on any rank of the node.
bool MpiChannel::share_memory(MPI_Comm node_comm) {
  node_ranks_ = topology_.node_ranks(rank_);
  node_index_ = static_cast<int>(std::find(node_ranks_.begin(), node_ranks_.end(), rank_) - node_ranks_.begin());
  const int ranks = static_cast<int>(node_ranks_.size());
  const std::size_t bytes = NodeLinks::bytes(ranks) + StatusBoard::bytes(ranks);
  region_ = ranks == 1 ? heap_region(bytes) : shared_region(node_comm, bytes);
  if (!region_) return false;
  links_ = std::make_unique<NodeLinks>(region_, 0, node_index_, ranks);
  board_ = std::make_unique<StatusBoard>(region_, NodeLinks::bytes(ranks), node_index_, node_ranks_);
  return true;
}

std::vector<int> MpiChannel::remote(const TreePosition& position) const {
  std::vector<int> neighbours = position.children;
  if (!position.root()) neighbours.push_back(position.parent);
  std::erase_if(neighbours, [&](int rank) { return std::binary_search(node_ranks_.begin(), node_ranks_.end(), rank); });
  return neighbours;
}

/// Ranks of several nodes learn how to ring each other.
void MpiChannel::exchange_addresses() {
  if (topology_.nodes() == 1) return;
  remote_doorbells_ = std::make_unique<RemoteDoorbells>(rank_, doorbell());
  const RemoteDoorbells::Address mine = remote_doorbells_->address();
  std::vector<RemoteDoorbells::Address> all(static_cast<std::size_t>(topology_.size()));
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm_.get()),
            "MPI_Allgather");
  remote_doorbells_->set_addresses(std::move(all));
}

void MpiChannel::open(const TreePosition& position) {
  for (int rank : remote(position)) {
    if (remote_[rank]++ == 0) remote_doorbells_->connect(rank);
  }
  remote_neighbours_ = static_cast<int>(remote_.size());
}

void MpiChannel::close(const TreePosition& position) {
  for (int rank : remote(position)) {
    if (--remote_[rank] == 0) remote_.erase(rank);
  }
  remote_neighbours_ = static_cast<int>(remote_.size());
}

bool MpiChannel::ask_to_be_rung() {
  std::vector<int> ranks;
  for (const auto& [rank, groups] : remote_) ranks.push_back(rank);
  const bool quiet = outgoing_.empty() && arriving_request_ == MPI_REQUEST_NULL;
  return ranks.empty() || (quiet && remote_doorbells_->ask(ranks));
}

void MpiChannel::send(int to, std::span<const std::byte> message) {
  const auto on_node = std::find(node_ranks_.begin(), node_ranks_.end(), to);
  if (on_node != node_ranks_.end()) {
    links_->send(static_cast<int>(on_node - node_ranks_.begin()), message);
    return;
  }
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->bytes.assign(message.begin(), message.end());
  check_mpi(MPI_Isend(outgoing->bytes.data(), static_cast<int>(outgoing->bytes.size()), MPI_BYTE, to, control_tag,
                      usable_, &outgoing->request),
            "MPI_Isend");
  outgoing_.push_back(std::move(outgoing));
  remote_doorbells_->sent(to);
}

bool MpiChannel::receive(Message& message) {
  if (links_->receive(message)) {
    message.from = node_ranks_[static_cast<std::size_t>(message.from)];
    return true;
  }
  return remote_neighbours_ > 0 && receive_mpi(message);
}

bool MpiChannel::receive_mpi(Message& message) {
  if (arriving_request_ == MPI_REQUEST_NULL) {
    int found = 0;
    MPI_Message matched;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, control_tag, usable_, &found, &matched, &status), "MPI_Improbe");
    if (!found) return false;
    int count = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    arriving_.from = status.MPI_SOURCE;
    arriving_.bytes.resize(static_cast<std::size_t>(count));
    check_mpi(MPI_Imrecv(arriving_.bytes.data(), count, MPI_BYTE, &matched, &arriving_request_), "MPI_Imrecv");
  }
  int complete = 0;
  check_mpi(MPI_Test(&arriving_request_, &complete, MPI_STATUS_IGNORE), "MPI_Test");
  if (!complete) return false;
  message = std::move(arriving_);
  remote_doorbells_->received(message.from);
  return true;
}

bool MpiChannel::pending() {
  return links_->pending();
}

bool MpiChannel::flush() {
  if (outgoing_.empty()) return links_->flush();
  std::erase_if(outgoing_, [](const auto& outgoing) {
    int complete = 0;
    check_mpi(MPI_Test(&outgoing->request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    return complete != 0;
  });
  return links_->flush() && outgoing_.empty();
}

void MpiChannel::abandon() noexcept {
  (void)comm_.release();  // freeing it is collective; later messages still go through `usable_`
  for (auto& outgoing : outgoing_) (void)outgoing.release();  // MPI may still read these
  outgoing_.clear();
}

void MpiChannel::abort_job(int exit_code) {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace kolo

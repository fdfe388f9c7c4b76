#include "runtime/control/processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include <kolo/error.h>

#include "runtime/control/wire.h"

namespace kolo {
namespace {

/// Collective, if any rank has a problem: throws, and names the first that has.
void throw_first_problem(Gathering& ranks, const Topology& topology, const std::optional<Failure>& mine) {
  Writer message;
  if (mine) {
    message.put(mine->code);
    message.put(std::string_view(mine->message));
  }
  const auto all = ranks.all(message.bytes());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    Reader reader(all[rank]);
    const auto code = reader.get<ErrorCode>(static_cast<int>(ErrorCode::backend) + 1);
    throw Error(code, fmt::format("rank {} (host {}): {}", rank, topology.places[rank].host, reader.get_string()));
  }
}

/// How `work` fails, if it does.
template <class Work>
std::optional<Failure> failure_of(Work&& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return Failure{error.code(), error.what()};
  }
}

}  // namespace

ProcessChannel::ProcessChannel(Gathering& ranks, std::function<void(int exit_code)> end_job, std::string_view fake,
                               std::string_view interfaces, std::string* note)
    : end_job_(std::move(end_job)), rank_(ranks.rank()) {
  find_places(ranks);
  if (!fake.empty()) fake_nodes(topology_, fake);
  if (!share_memory(ranks)) {
    if (note)
      *note =
          "ranks of a node cannot share memory (see /proc/sys/kernel/yama and the container's settings); each is "
          "treated as a node of its own";
    for (int rank = 0; rank < ranks.size(); ++rank) topology_.places[static_cast<std::size_t>(rank)].node = rank;
    (void)share_memory(ranks);
  }
  if (topology_.nodes() > 1) meet_other_nodes(ranks, interfaces);
  processes_ = std::make_unique<ProcessWatch>(neighbours_, doorbell());
}

/// Every rank learns the host, process and node of all ranks; a node is identified by its lowest rank.
void ProcessChannel::find_places(Gathering& ranks) {
  struct Entry {
    std::int32_t lowest;
    std::int32_t pid;
    std::uint64_t pid_namespace;
    std::array<char, 64> host;
  } mine{};
  mine.lowest = ranks.lowest_on_node();
  mine.pid = static_cast<std::int32_t>(getpid());
  mine.pid_namespace = pid_namespace();
  const std::string host = host_name();
  std::copy(host.begin(), host.end(), mine.host.begin());
  std::map<std::int32_t, int> node_of;  // lowest rank → node; ranks are visited in order, so nodes come out ordered too
  for (const Entry& entry : ranks.all_values(mine)) {
    const int node = node_of.emplace(entry.lowest, static_cast<int>(node_of.size())).first->second;
    const int rank = topology_.size();
    topology_.places.push_back({node, entry.host.data(), entry.pid, node});
    if (rank != rank_ && entry.lowest == mine.lowest && entry.pid_namespace == mine.pid_namespace)
      neighbours_.emplace(rank, entry.pid);
  }
}

/// The ranks of each node share a region. Returns false, on all ranks, if that failed on any.
bool ProcessChannel::share_memory(Gathering& gathering) {
  node_ranks_ = topology_.node_ranks(rank_);
  node_index_ = static_cast<int>(std::find(node_ranks_.begin(), node_ranks_.end(), rank_) - node_ranks_.begin());
  const int ranks = static_cast<int>(node_ranks_.size());
  region_ = shared_region(gathering, node_ranks_, NodeLinks::bytes(ranks) + StatusBoard::bytes(ranks));
  if (!region_) return false;
  links_ = std::make_unique<NodeLinks>(region_, 0, node_index_, ranks);
  board_ = std::make_unique<StatusBoard>(region_, NodeLinks::bytes(ranks), node_index_, node_ranks_);
  return true;
}

/// The ranks of different nodes learn where the leaders of nodes listen, and what proves that they belong together. A
/// leader listens on the address from which packets go to a neighbour in the tree of all ranks.
void ProcessChannel::meet_other_nodes(Gathering& ranks, std::string_view interfaces) {
  std::vector<std::size_t> leaders;
  for (std::size_t rank = 0; rank < topology_.places.size(); ++rank) {
    if (topology_.places[rank].node == static_cast<int>(leaders.size())) leaders.push_back(rank);
  }
  const auto node = static_cast<std::size_t>(topology_.places[static_cast<std::size_t>(rank_)].node);
  const bool leads = node_index_ == 0;

  // First rank 0's secret, and what addresses there are.
  Meeting::Secret secret;
  std::vector<NetworkAddress> own;
  std::optional<Failure> problem = failure_of([&] {
    if (rank_ == 0) secret = Meeting::new_secret();
    if (leads) own = own_addresses(interfaces);
  });
  Writer message;
  message.append(std::as_bytes(std::span(&secret, 1)));
  for (const NetworkAddress& address : own) encode(message, address);
  const auto lists = ranks.all(leads ? message.bytes() : std::span<const std::byte>());
  std::vector<std::vector<NetworkAddress>> addresses;
  std::vector<std::string> hosts;
  for (const std::size_t leader : leaders) {
    Reader reader(lists[leader]);
    Meeting::Secret of_leader;
    reader.copy_to(std::as_writable_bytes(std::span(&of_leader, 1)));
    if (leader == 0) secret = of_leader;
    auto& list = addresses.emplace_back();
    while (!reader.done()) list.push_back(decode_network_address(reader));
    hosts.push_back(topology_.places[leader].host);
  }

  // Then where each leader listens, if all went well.
  struct Meets {
    std::int32_t well = 0;
    NetworkAddress at;
  } mine;
  if (!problem) {
    problem = failure_of([&] {
      FileDescriptor listening;
      if (leads) {
        const std::size_t neighbour = node == 0 ? 1 : (node - 1) / TreePosition::tree_fan_out;
        const auto usable = unshared(node, hosts, addresses);
        if (usable.empty())
          throw Error(ErrorCode::backend,
                      "every address of this host is also one of another host's; give it one of "
                      "its own, or name interfaces in KOLO_INTERFACE");
        mine.at = address_towards(usable, unshared(neighbour, hosts, addresses));
        listening = listening_socket(mine.at);
      }
      far_links_ = std::make_unique<TcpLinks>(
          rank_, secret, std::move(listening), [this](int rank) { return meeting_place(rank); }, doorbell());
    });
  }
  mine.well = !problem;
  const std::vector<Meets> all = ranks.all_values(mine);
  if (std::ranges::any_of(all, [](const Meets& one) { return one.well == 0; }))
    throw_first_problem(ranks, topology_, problem);
  for (const std::size_t leader : leaders) listens_at_.push_back(all[leader].at);
}

Meeting::Place ProcessChannel::meeting_place(int rank) const {
  const Topology::Place& place = topology_.places.at(static_cast<std::size_t>(rank));
  return {listens_at_.at(static_cast<std::size_t>(place.node)), topology_.name(rank)};
}

std::optional<int> ProcessChannel::index_on_node(int rank) const {
  const auto found = std::ranges::lower_bound(node_ranks_, rank);
  if (found == node_ranks_.end() || *found != rank) return std::nullopt;
  return static_cast<int>(found - node_ranks_.begin());
}

void ProcessChannel::open(const TreePosition& position) {
  if (!position.root() && !index_on_node(position.parent)) far_links_->open(position.parent);
  for (const int child : position.children) {
    if (!index_on_node(child)) far_links_->open(child);
  }
}

void ProcessChannel::send(int to, std::span<const std::byte> message) {
  if (const auto index = index_on_node(to)) {
    links_->send(*index, message);
  } else {
    far_links_->send(to, message);
  }
}

bool ProcessChannel::receive(Message& message) {
  if (!links_->receive(message)) return far_links_ && far_links_->receive(message);
  message.from = node_ranks_[static_cast<std::size_t>(message.from)];
  return true;
}

std::optional<ControlChannel::Loss> ProcessChannel::take_loss() {
  const auto ended = processes_->take();
  if (!ended) return far_links_ ? far_links_->take_loss() : std::nullopt;
  if (const auto index = index_on_node(*ended)) links_->drop(*index);
  return Loss{*ended, topology_.name(*ended) + " is gone: its process has ended"};
}

bool ProcessChannel::has_closed(int rank) {
  const auto index = index_on_node(rank);
  return index && links_->has_closed(*index);
}

bool ProcessChannel::flush() {
  const bool all = links_->flush();
  return (!far_links_ || far_links_->flush()) && all;
}

void ProcessChannel::listen() {
  if (far_links_) far_links_->listen();
}

void ProcessChannel::abort_job(int exit_code) {
  std::fflush(nullptr);
  if (end_job_) end_job_(exit_code);
  std::_Exit(exit_code);
}

}  // namespace kolo

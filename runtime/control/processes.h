#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/host/gathering.h"
#include "runtime/control/channel.h"
#include "runtime/control/node_links.h"
#include "runtime/control/process_watch.h"
#include "runtime/control/tcp_links.h"

namespace kolo {

/// Control messages between processes: over shared memory within a node, over TCP between nodes. A
/// Gathering brings them together.
class ProcessChannel final : public ControlChannel {
 public:
  /// Collective over `ranks`. `end_job` ends all of them with an exit code; null: they must not be ended. `fake_nodes`
  /// and `interfaces` as in Config (KOLO_FAKE_NODES, KOLO_INTERFACE); `note` receives a line if the ranks of a node
  /// cannot share memory and are treated as nodes of their own. Throws Error, on every rank, that names the rank on
  /// which something is missing.
  ProcessChannel(Gathering& ranks, std::function<void(int exit_code)> end_job, std::string_view fake_nodes,
                 std::string_view interfaces, std::string* note);

  int rank() const override { return rank_; }
  const Topology& topology() const override { return topology_; }
  void open(const TreePosition& position) override;
  void send(int to, std::span<const std::byte> message) override;
  bool receive(Message& message) override;
  bool pending() override { return links_->pending() || processes_->any() || (far_links_ && far_links_->pending()); }
  std::optional<Loss> take_loss() override;
  bool has_closed(int rank) override;
  bool flush() override;
  void listen() override;
  std::string troubles() const override { return far_links_ ? far_links_->troubles() : ""; }
  Doorbell& doorbell() override { return links_->doorbell(node_index_); }
  StatusBoard& board() override { return *board_; }
  bool spans_processes() const override { return true; }
  bool may_end_job() const override { return end_job_ != nullptr; }
  [[noreturn]] void abort_job(int exit_code) override;

  /// Those of this node's ranks, in their order; valid as long as this.
  std::span<Doorbell> doorbells() { return links_->doorbells(); }

 private:
  void find_places(Gathering& ranks);
  bool share_memory(Gathering& ranks);
  void meet_other_nodes(Gathering& ranks, std::string_view interfaces);
  Meeting::Place meeting_place(int rank) const;
  std::optional<int> index_on_node(int rank) const;

  const std::function<void(int exit_code)> end_job_;
  const int rank_;
  Topology topology_;
  std::vector<int> node_ranks_;  // session ranks of this node
  int node_index_ = 0;           // of this rank among them
  std::shared_ptr<Region> region_;
  std::unique_ptr<NodeLinks> links_;
  std::unique_ptr<StatusBoard> board_;
  std::vector<NetworkAddress> listens_at_;  // by node: its leader; before anybody is called
  std::unique_ptr<TcpLinks> far_links_;     // null if all ranks share a node
  std::map<int, int> neighbours_;           // by rank: other processes of this host whose numbers are known here
  std::unique_ptr<ProcessWatch> processes_;
};

}  // namespace kolo

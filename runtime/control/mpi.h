#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/mpi_base/handles.h"
#include "runtime/control/channel.h"
#include "runtime/control/node_links.h"
#include "runtime/control/remote_doorbells.h"

namespace kolo {

/// Control messages between processes: over shared memory within a node, over MPI between nodes.
///
/// Only a rank that leads its node in some group has neighbours on other nodes: while it has, and is awake, it must
/// poll MPI; the others never do. Before it sleeps it asks these neighbours to ring it (RemoteDoorbells).
class MpiChannel final : public ControlChannel {
 public:
  /// Collective over `comm`, which is duplicated. `fake_nodes` as in Config; `note` receives a line if the ranks of a
  /// node cannot share memory and are treated as nodes of their own.
  MpiChannel(MPI_Comm comm, std::string_view fake_nodes, std::string* note);
  ~MpiChannel() override;

  int rank() const override { return rank_; }
  const Topology& topology() const override { return topology_; }
  void open(const TreePosition& position) override;
  void close(const TreePosition& position) override;
  void send(int to, std::span<const std::byte> message) override;
  bool receive(Message& message) override;
  bool pending() override;
  bool flush() override;
  bool needs_polling() const override { return remote_neighbours_.load(std::memory_order_relaxed) > 0; }
  bool ask_to_be_rung() override;
  Doorbell& doorbell() override { return links_->doorbell(node_index_); }
  StatusBoard& board() override { return *board_; }
  bool spans_processes() const override { return true; }
  void abandon() noexcept override;
  [[noreturn]] void abort_job(int exit_code) override;

  /// Those of this node's ranks, in their order; valid as long as this.
  std::span<Doorbell> doorbells() { return links_->doorbells(); }

 private:
  struct Outgoing {
    MPI_Request request;
    std::vector<std::byte> bytes;
  };

  void find_places(MPI_Comm node_comm);
  bool share_memory(MPI_Comm node_comm);
  std::vector<int> remote(const TreePosition& position) const;  // the neighbours on other nodes
  void exchange_addresses();
  bool receive_mpi(Message& message);

  MpiComm comm_;
  MPI_Comm usable_;  // the same, also once comm_ has been given up
  int rank_ = 0;
  Topology topology_;
  std::vector<int> node_ranks_;            // session ranks of this node
  int node_index_ = 0;                     // of this rank among them
  std::map<int, int> remote_;              // neighbours on other nodes, and in how many groups
  std::atomic<int> remote_neighbours_{0};  // their number
  std::shared_ptr<Region> region_;
  std::unique_ptr<NodeLinks> links_;
  std::unique_ptr<StatusBoard> board_;
  std::unique_ptr<RemoteDoorbells> remote_doorbells_;  // null if all ranks share a node
  std::deque<std::unique_ptr<Outgoing>> outgoing_;
  Message arriving_;
  MPI_Request arriving_request_ = MPI_REQUEST_NULL;
};

}  // namespace kolo

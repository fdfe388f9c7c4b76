#include "ops/nodes_backend.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/mpi_backend.h"
#include "ops/mpi_handles.h"
#include "ops/nodes_all_reduce.h"

namespace kolo {
namespace {

MpiComm split(MPI_Comm comm, int color) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, color < 0 ? MPI_UNDEFINED : color, 0, &part), "MPI_Comm_split");
  return MpiComm(part);
}

class NodesBackend final : public Backend {
 public:
  NodesBackend(MPI_Comm comm, std::vector<int> node_of, NodeBackendMaker make_node, const MpiTuning& tuning)
      : comm_(duplicate(comm)), node_of_(std::move(node_of)), make_node_(std::move(make_node)), tuning_(tuning) {
    int rank = 0;
    check_mpi(MPI_Comm_rank(comm_.get(), &rank), "MPI_Comm_rank");
    std::map<int, int> order;  // nodes are numbered by their lowest ranks
    for (int node : node_of_) order.try_emplace(node, static_cast<int>(order.size()));
    placement_.ranks.resize(order.size());
    for (std::size_t other = 0; other < node_of_.size(); ++other) {
      auto& members = placement_.ranks[static_cast<std::size_t>(order.at(node_of_[other]))];
      if (static_cast<int>(other) == rank) placement_.index = static_cast<int>(members.size());
      members.push_back(static_cast<int>(other));
    }
    placement_.node = order.at(node_of_[static_cast<std::size_t>(rank)]);
    const MpiComm node = split(comm_.get(), placement_.node);
    const MpiComm stripe = split(comm_.get(), placement_.holds_stripe() ? placement_.index : -1);
    if (placement_.mine().size() > 1) node_backend_ = make_node_(node.get());
    if (placement_.holds_stripe()) between_ = mpi_backend(stripe.get(), tuning_);
  }

  std::string_view name() const override { return "nodes"; }
  bool supports(const Signature& signature) const override {
    if (signature.kind != OpKind::all_reduce || signature.device != DeviceKind::cpu || !reducible(signature)) return false;
    if (is_floating_point(signature.dtype)) return signature.dtype == DType::f32 || signature.dtype == DType::f64;
    return signature.op != ReduceOp::average && signature.postscale == 1;
  }
  std::unique_ptr<Operation> start(Bucket bucket) override {
    return std::make_unique<NodesAllReduce>(placement_, node_backend_.get(), between_.get(), tuning_.segments, std::move(bucket));
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    std::vector<int> node_of;
    for (int rank : group.ranks) node_of.push_back(node_of_[static_cast<std::size_t>(rank)]);
    if (!spans_shared_nodes(node_of)) return nullptr;
    return std::make_unique<NodesBackend>(communicator_of(comm_.get(), group).get(), std::move(node_of), make_node_, tuning_);
  }
  void abandon() noexcept override {
    (void)comm_.release();
    if (node_backend_) node_backend_->abandon();
    if (between_) between_->abandon();
  }
  std::uint64_t staged_bytes() const override {
    return (node_backend_ ? node_backend_->staged_bytes() : 0) + (between_ ? between_->staged_bytes() : 0);
  }

 private:
  MpiComm comm_;
  std::vector<int> node_of_;
  NodeBackendMaker make_node_;
  MpiTuning tuning_;
  NodePlacement placement_;
  std::unique_ptr<Backend> node_backend_;  // null if this rank is alone on its node
  std::unique_ptr<Backend> between_;       // among the ranks that hold the same stripe; null if this one holds none
};

}  // namespace

bool spans_shared_nodes(const std::vector<int>& node_of) {
  std::map<int, int> members;
  for (int node : node_of) ++members[node];
  return members.size() > 1 && members.size() < node_of.size();
}

std::unique_ptr<Backend> nodes_backend(MPI_Comm comm, std::vector<int> node_of, NodeBackendMaker make_node, const MpiTuning& tuning) {
  return std::make_unique<NodesBackend>(comm, std::move(node_of), std::move(make_node), tuning);
}

}  // namespace kolo

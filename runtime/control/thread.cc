#include "runtime/control/thread.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "runtime/control/node_links.h"

namespace kolo {
namespace {

class ThreadChannel final : public ControlChannel {
 public:
  ThreadChannel(const std::shared_ptr<Region>& region, const Topology& topology, int rank, std::vector<int> ranks)
      : rank_(rank),
        topology_(topology),
        links_(region, 0, rank, topology.size()),
        board_(region, NodeLinks::bytes(topology.size()), rank, std::move(ranks)) {}

  int rank() const override { return rank_; }
  const Topology& topology() const override { return topology_; }
  void open(const TreePosition&) override {}
  void send(int to, std::span<const std::byte> message) override { links_.send(to, message); }
  bool receive(Message& message) override { return links_.receive(message); }
  bool pending() override { return links_.pending(); }
  bool has_closed(int rank) override { return links_.has_closed(rank); }
  bool flush() override { return links_.flush(); }
  Doorbell& doorbell() override { return links_.doorbell(rank_); }
  StatusBoard& board() override { return board_; }
  bool spans_processes() const override { return false; }
  [[noreturn]] void abort_job(int exit_code) override {
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }

  std::span<Doorbell> doorbells() { return links_.doorbells(); }

 private:
  int rank_;
  Topology topology_;
  NodeLinks links_;
  StatusBoard board_;
};

}  // namespace

std::vector<std::unique_ptr<ControlChannel>> thread_channels(const Topology& topology) {
  const int size = topology.size();
  auto region = heap_region(NodeLinks::bytes(size) + StatusBoard::bytes(size));
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::unique_ptr<ControlChannel>> channels;
  for (int rank = 0; rank < size; ++rank) {
    channels.push_back(std::make_unique<ThreadChannel>(region, topology, rank, ranks));
  }
  return channels;
}

std::span<Doorbell> thread_doorbells(ControlChannel& channel) {
  return static_cast<ThreadChannel&>(channel).doorbells();
}

}  // namespace kolo

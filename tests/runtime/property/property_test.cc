// The whole runtime against a serial model: random programs, ranks as threads. Every result is compared, every error
// must be the same on all ranks, and nothing may hang: a stall ends the process and names the seed. Replay one program
// with KOLO_TEST_SEED=<seed>, run more with KOLO_TEST_SCALE=<factor>.

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/control/tcp_links.h"
#include "runtime/world/parts.h"
#include "tests/runtime/property/property_player.h"

namespace kolo {
namespace {

constexpr int parts = 10;

class Property : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, Property, ::testing::Range(0, parts));

TEST_P(Property, EveryProgramDoesWhatTheModelDoes) {
  testing::play_programs(2000, GetParam(), parts);
}

// ---- the same on several nodes, between which control messages travel over TCP -------------------------------------

/// Where the ranks of one program meet.
struct MeetingPlaces {
  Meeting::Secret secret = Meeting::new_secret();
  std::vector<Meeting::Place> by_node;
  std::vector<FileDescriptor> listening;

  explicit MeetingPlaces(int nodes) {
    for (int node = 0; node < nodes; ++node) {
      NetworkAddress at{.bytes = {127, 0, 0, 1}};
      listening.push_back(listening_socket(at));
      by_node.push_back({at, "a rank of node " + std::to_string(node)});
    }
  }
};

/// What goes to another node goes over TCP, all else as it did.
class TcpChannel final : public ControlChannel {
 public:
  TcpChannel(std::unique_ptr<ControlChannel> real, const std::shared_ptr<MeetingPlaces>& places)
      : real_(std::move(real)) {
    const int node = node_of(rank());
    const bool leads = topology().node_ranks(rank()).front() == rank();
    far_ = std::make_unique<TcpLinks>(
        rank(), places->secret, leads ? std::move(places->listening[static_cast<std::size_t>(node)]) : FileDescriptor(),
        [this, places](int to) { return places->by_node.at(static_cast<std::size_t>(node_of(to))); }, doorbell());
  }

  int rank() const override { return real_->rank(); }
  const Topology& topology() const override { return real_->topology(); }
  void open(const TreePosition& position) override {
    if (!position.root() && far(position.parent)) far_->open(position.parent);
    for (const int child : position.children) {
      if (far(child)) far_->open(child);
    }
  }
  void send(int to, std::span<const std::byte> message) override {
    far(to) ? far_->send(to, message) : real_->send(to, message);
  }
  bool receive(Message& message) override { return real_->receive(message) || far_->receive(message); }
  bool pending() override { return real_->pending() || far_->pending(); }
  bool flush() override {
    const bool all = real_->flush();
    return far_->flush() && all;
  }
  void listen() override { far_->listen(); }
  bool has_closed(int rank) override { return !far(rank) && real_->has_closed(rank); }
  std::string troubles() const override { return far_->troubles(); }
  Doorbell& doorbell() override { return real_->doorbell(); }
  StatusBoard& board() override { return real_->board(); }
  bool spans_processes() const override { return false; }
  [[noreturn]] void abort_job(int exit_code) override {
    real_->abort_job(exit_code);
    std::abort();
  }

 private:
  int node_of(int rank) const { return topology().places[static_cast<std::size_t>(rank)].node; }
  bool far(int rank) const { return node_of(rank) != node_of(this->rank()); }

  const std::unique_ptr<ControlChannel> real_;
  std::unique_ptr<TcpLinks> far_;
};

constexpr int tcp_parts = 4;

class PropertyTcp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tcp, PropertyTcp, ::testing::Range(0, tcp_parts));

TEST_P(PropertyTcp, EveryProgramDoesWhatTheModelDoes) {
  testing::play_programs(400, GetParam(), tcp_parts, [](const testing::PropertyProgram& program, Config& config) {
    if (config.fake_nodes.empty()) {  // each rank on a node of its own
      for (int rank = 0; rank < program.ranks; ++rank) config.fake_nodes += rank == 0 ? "1" : ",1";
    }
    const auto nodes = static_cast<int>(std::ranges::count(config.fake_nodes, ',') + 1);
    return [places = std::make_shared<MeetingPlaces>(nodes)](int, World& world) {
      auto& control = world.parts().control;
      control = std::make_unique<TcpChannel>(std::move(control), places);
    };
  });
}

}  // namespace
}  // namespace kolo

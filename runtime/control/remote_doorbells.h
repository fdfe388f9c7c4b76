#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ops/host/doorbell.h"

namespace kolo {

/// Lets ranks on other nodes ring this rank's doorbell while it sleeps: a TCP connection for each edge between nodes,
/// and a thread that sleeps in poll(). MPI itself can only be asked again and again.
///
/// How nobody sleeps through a message. Both ends of an edge count the messages that go over it by other means. A rank
/// that is about to sleep says how many it has received. The other end rings it if it has sent more than that, or with
/// the next one it sends. (The sender counts, then looks whether the other sleeps; the listener notes that it sleeps,
/// then looks at the count: one of the two sees the other.) Where a connection cannot be had, the edge has no doorbell,
/// and the rank must poll.
class RemoteDoorbells {
 public:
  /// How to reach a rank; exchanged between all of them.
  struct Address {
    std::array<std::uint32_t, 4> ipv4{};  ///< in network order; zero: none
    std::uint16_t port = 0;               ///< zero: this rank cannot be reached
    std::uint64_t token = 0;              ///< what a caller must know
  };

  /// Listens, on every IPv4 interface of the host. `doorbell` is rung by what comes.
  RemoteDoorbells(int rank, Doorbell& doorbell);
  ~RemoteDoorbells();
  RemoteDoorbells(const RemoteDoorbells&) = delete;
  RemoteDoorbells& operator=(const RemoteDoorbells&) = delete;

  Address address() const { return address_; }
  /// By rank. Before the first connect().
  void set_addresses(std::vector<Address> addresses) { addresses_ = std::move(addresses); }

  // By one thread at a time.

  /// This rank and `rank` are neighbours from now on; the lower one is called by the higher one. Waits for at most a
  /// second.
  void connect(int rank);
  /// A message to, or from, a neighbour.
  void sent(int rank);
  void received(int rank);
  /// Asks these neighbours to ring from now on. False if one of them cannot be asked.
  bool ask(std::span<const int> ranks);

 private:
  struct Edge {
    std::atomic<int> socket{-1};
    std::atomic<std::uint64_t> sent{0};
    std::uint64_t received = 0;
    std::atomic<bool> asked{false};  // this end has asked, and not been rung since
    std::uint64_t asked_at = 0;      // with this many received
    std::atomic<bool> peer_sleeps{false};
    std::vector<std::uint8_t> incoming;  // the listener's
  };

  Edge& edge(int rank);
  void listen();
  void accept_one();
  void hear(Edge& edge);
  void adopt(int rank, int socket);
  void wake_listener();

  int rank_;
  Doorbell& doorbell_;
  Address address_;
  std::vector<Address> addresses_;
  int listening_ = -1;
  int wake_ = -1;     // an eventfd: there is a new edge, or the end
  std::mutex mutex_;  // of the map; edges stay where they are
  std::unordered_map<int, std::unique_ptr<Edge>> edges_;
  std::atomic<bool> stop_{false};
  std::jthread thread_;
};

}  // namespace kolo

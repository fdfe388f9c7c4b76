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
#include "ops/host/file_descriptor.h"

namespace kolo {

/// Lets ranks on other nodes ring this rank's doorbell while it sleeps: one TCP connection per inter-node edge of the
/// tree, and a thread that sleeps in poll(). MPI itself can only be polled.
///
/// No message is missed: both ends of an edge count the messages that MPI carries over it. A rank that is about to
/// sleep sends the number it has received. The other end rings it if it has sent more than that, or when it sends the
/// next one. (The sender increments its count, then checks whether the peer sleeps; the listener notes that the peer
/// sleeps, then checks the count: one of the two sees the other's write.) Where a connection cannot be made, the edge
/// has no doorbell, and the rank must poll.
class RemoteDoorbells {
 public:
  /// How to reach a rank; every rank has all of them.
  struct Address {
    std::array<std::uint32_t, 4> ipv4{};  ///< in network order; zero: none
    std::uint16_t port = 0;               ///< zero: this rank cannot be reached
    std::uint64_t token = 0;              ///< a caller proves itself with it
  };

  /// Listens on every IPv4 interface of the host. Peers ring `doorbell`.
  RemoteDoorbells(int rank, Doorbell& doorbell);
  ~RemoteDoorbells();
  RemoteDoorbells(const RemoteDoorbells&) = delete;
  RemoteDoorbells& operator=(const RemoteDoorbells&) = delete;

  Address address() const { return address_; }
  /// By rank. Before the first connect().
  void set_addresses(std::vector<Address> addresses) { addresses_ = std::move(addresses); }

  // By one thread at a time.

  /// Makes `rank` a neighbour: the higher of both ranks connects to the lower one. Waits for at most a second.
  void connect(int rank);
  /// Counts a message to, or from, a neighbour.
  void sent(int rank);
  void received(int rank);
  /// Asks these neighbours to ring from now on. False if one of them cannot be asked.
  bool ask(std::span<const int> ranks);

 private:
  struct Edge {
    ~Edge() { FileDescriptor(socket.load()); }
    std::atomic<int> socket{-1};  // owned; replaced by the listener
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
  void read_from(Edge& edge);
  void adopt(int rank, FileDescriptor socket);
  void wake_listener();

  int rank_;
  Doorbell& doorbell_;
  Address address_;
  std::vector<Address> addresses_;
  FileDescriptor listening_;
  FileDescriptor wake_;  // an eventfd: a new edge, or the end
  std::mutex mutex_;     // of the map; edges stay where they are
  std::unordered_map<int, std::unique_ptr<Edge>> edges_;
  std::atomic<bool> stop_{false};
  std::jthread thread_;
};

}  // namespace kolo

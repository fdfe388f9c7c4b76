#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ops/host/doorbell.h"
#include "ops/host/file_descriptor.h"
#include "runtime/control/channel.h"
#include "runtime/control/meeting.h"

namespace kolo {

/// Control messages between ranks of different nodes: one TCP connection for each two that are neighbours in a group's
/// tree, made in the background (Meeting) and kept.
///
/// A message is a 32-bit length and its bytes. What is sent before there is a connection, or faster than it goes, is
/// kept. What comes is a wake-up, too: listen() asks for it. A connection that is lost stays lost: messages to that
/// rank go nowhere, and take_loss() and troubles() say why.
///
/// Used by one thread at a time, but for troubles().
class TcpLinks {
 public:
  /// As of Meeting. Throws Error{backend}.
  TcpLinks(int rank, const Meeting::Secret& secret, FileDescriptor listening,
           std::function<Meeting::Place(int rank)> place_of, Doorbell& doorbell);
  /// Waits until the other hosts have what was sent, for a second at most.
  ~TcpLinks();

  void open(int rank);
  void send(int to, std::span<const std::byte> message);
  bool receive(ControlChannel::Message& message);
  bool pending() const;
  /// As of ControlChannel; what waits for a rank to be met is no reason to come again.
  bool flush();
  /// Of a rank whose connection was lost.
  std::optional<ControlChannel::Loss> take_loss();
  void listen() { meeting_.listen(); }
  std::string troubles() const { return meeting_.troubles(); }

 private:
  struct Link {
    FileDescriptor socket;  // none: not met yet, or lost
    bool closing = false;   // nothing more is sent
    bool watched_for_room = false;
    std::vector<std::byte> outgoing, incoming;
    std::size_t sent = 0;  // of outgoing
  };

  void welcome();
  bool read();
  void read_from(int rank, Link& link);
  void push(int rank, Link& link);
  void watch(int operation, int rank, Link& link);
  void lose(int rank, Link& link, const std::string& why);

  const FileDescriptor poll_;
  const std::function<Meeting::Place(int rank)> place_of_;
  std::map<int, Link> links_;
  std::set<int> unsent_;  // connected, and outgoing is not empty
  int connected_ = 0;
  std::deque<ControlChannel::Message> messages_;
  std::deque<ControlChannel::Loss> losses_;
  Meeting meeting_;  // last: its thread looks at poll_
};

}  // namespace kolo

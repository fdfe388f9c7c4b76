#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ops/host/doorbell.h"
#include "runtime/control/status_board.h"
#include "runtime/control/topology.h"

namespace kolo {

/// Carries small messages between ranks: announcements and decisions. Implementations: control_thread (ranks in one
/// process) and control_mpi (processes); both use NodeLinks between ranks of one node.
///
/// Messages of one rank to another arrive in order. Nothing blocks. Used by one thread at a time, except doorbell().
class ControlChannel {
 public:
  struct Message {
    int from = 0;
    std::vector<std::byte> bytes;
  };

  virtual ~ControlChannel() = default;

  virtual int rank() const = 0;
  virtual const Topology& topology() const = 0;

  /// Opens, and closes again, the links to the neighbours of a position in a group's tree: needed before messages are
  /// exchanged with them.
  virtual void open(const TreePosition& position) = 0;
  virtual void close(const TreePosition& position) = 0;

  /// Queues a message for `to` and hands on what fits; wakes the receiver.
  virtual void send(int to, std::span<const std::byte> message) = 0;

  /// Takes the next message, if one is here.
  virtual bool receive(Message& message) = 0;

  /// Whether receive() may find something. Cheap; may err on the side of true.
  virtual bool pending() = 0;

  /// Hands on what send() could not; returns whether nothing is left.
  virtual bool flush() = 0;

  /// Whether there are peers that can be heard only by calling receive(): they do not ring the doorbell, unless they
  /// are asked to.
  virtual bool needs_polling() const = 0;

  /// For a rank that is about to sleep on its doorbell, before it looks at receive() for the last time: asks all peers
  /// to ring from now on. False if some will not.
  virtual bool ask_to_be_rung() { return !needs_polling(); }

  /// Rung by peers of this node when they have sent something, and by anybody in this process.
  virtual Doorbell& doorbell() = 0;

  /// What this node's ranks publish about themselves for each other's watchdogs.
  virtual StatusBoard& board() = 0;

  /// Whether the ranks are processes, which exit() ends one by one.
  virtual bool spans_processes() const = 0;

  /// A rank left without finishing: release nothing collectively from now on.
  virtual void abandon() noexcept = 0;

  /// Ends the whole job with this exit code. All text must have been written before.
  [[noreturn]] virtual void abort_job(int exit_code) = 0;
};

}  // namespace kolo

#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/host/doorbell.h"
#include "runtime/control/status_board.h"
#include "runtime/control/topology.h"

namespace kolo {

/// Carries announcements and decisions between ranks. Implementations: thread.h (ranks in one process) and
/// processes.h; both use NodeLinks within a node.
///
/// Messages of one rank to another arrive in order. Nothing blocks. Used by one thread at a time, except doorbell() and
/// what says so.
class ControlChannel {
 public:
  struct Message {
    int from = 0;
    std::vector<std::byte> bytes;
  };

  virtual ~ControlChannel() = default;

  virtual int rank() const = 0;
  virtual const Topology& topology() const = 0;

  /// Opens the links to the neighbours of a position in a group's tree; only open links carry messages.
  virtual void open(const TreePosition& position) = 0;

  /// Queues a message for `to`, sends what fits, and wakes the receiver.
  virtual void send(int to, std::span<const std::byte> message) = 0;

  /// Takes the next message, if one is here.
  virtual bool receive(Message& message) = 0;

  /// Whether receive() may find something. Cheap; may err on the side of true.
  virtual bool pending() = 0;

  /// Sends what send() could not; returns true if nothing is left, but for ranks that have not been met yet.
  virtual bool flush() = 0;

  /// Before whoever acts for this rank sleeps on the doorbell, or leaves that to others, and before its last receive():
  /// a message of any peer rings from now on, also one that is here already.
  virtual void listen() {}

  /// A rank that is gone, for good: "rank 1 (host h, pid 12) is gone: its process has ended", or the connection to it
  /// was lost.
  struct Loss {
    int rank = 0;
    std::string text;
  };
  /// Word of why it is gone, or that it may be, can come from other ranks so much later.
  static constexpr std::chrono::milliseconds word_comes_within{300};
  /// What has been noticed of that, each rank once; when all that came from there has been received. pending() is true
  /// until it is taken, and the doorbell rings for it.
  virtual std::optional<Loss> take_loss() { return std::nullopt; }

  /// Whether a rank of this node has closed its channel: nothing that it has not sent before comes from there. The
  /// doorbell rings for it. Elsewhere no rank is known to.
  virtual bool has_closed(int) { return false; }

  /// What stands between this rank and peers on other nodes, for reports; mostly empty. Any thread.
  virtual std::string troubles() const { return ""; }

  /// Rung by peers that have sent a message, and by any thread of this process.
  virtual Doorbell& doorbell() = 0;

  /// The entries of this node's ranks, for their watchdogs.
  virtual StatusBoard& board() = 0;

  /// Whether the ranks are processes, which exit() ends one by one.
  virtual bool spans_processes() const = 0;

  /// Whether the watchdog may call abort_job().
  virtual bool may_end_job() const { return true; }

  /// Ends the whole job with this exit code. All text must have been written before.
  [[noreturn]] virtual void abort_job(int exit_code) = 0;
};

}  // namespace kolo

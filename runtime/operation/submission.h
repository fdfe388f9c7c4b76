#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

#include "runtime/operation/rare.h"
#include "runtime/operation/small_vector.h"
#include "runtime/types/flag.h"

namespace kolo {

struct Submission;
using SubmissionPtr = std::shared_ptr<Submission>;

/// Called once by whoever completes an operation, after `done` is set: must not block, throw, or call the session.
using Listener = std::shared_ptr<const std::function<void()>>;

/// How a send or a receive of an ordered group finds its partner.
struct PairMatch {
  bool sends = false;
  int peer = -1;                 ///< a rank of the group; -1: a receive from any
  std::vector<int> tags;         ///< one; of a receive from any: one of these, or any if there are none
  Received* received = nullptr;  ///< where the program reads what came
};

/// What one rank asked for. The session fills it in and checks it; PendingQueue::submit() looks up a declared name, and
/// numbers what has none; from then on it does not change.
struct Request {
  using Clock = std::chrono::steady_clock;

  std::string text;                            ///< its name, unless that is declared
  std::optional<std::uint32_t> declared;       ///< the index of its declared name
  const std::string* declared_name = nullptr;  ///< that name, which the queue keeps
  std::shared_ptr<const GroupInfo> group;
  std::shared_ptr<const GroupInfo> parent;       ///< send_recv: the program's group; `group` is the pair
  Signature signature;                           ///< its members name the tensors of a grouped submission
  Rare<PairMatch> match;                         ///< send_recv of an ordered group, which has no name
  SmallVector<BucketTensor> tensors;             ///< one; several if grouped; none where nothing moves
  std::vector<std::int64_t> sizes;               ///< of what has_rows(), see block_sizes.h; empty otherwise
  std::function<Tensor(const Shape&)> allocate;  ///< makes the output once its shape is agreed; or empty
  BlockRows* received_rows = nullptr;            ///< where the program reads the rows that came from each rank
  std::shared_ptr<const DevicePoint> ready;      ///< of device tensors: after it inputs hold their values
  Rare<Failure> invalid;                         ///< a bad argument, announced as the name's failure
  Rare<Failure> ends;                            ///< remove_group: how what is in flight in the group fails; only that
  std::optional<double> timeout_seconds;         ///< it fails when it has been in flight for so long
  std::shared_ptr<Submission> stands_for;        ///< what is complete with it: of a message by tag, on GPUs
  std::optional<std::uint64_t> number;  ///< of a barrier, join, removal, or call without a name, in the group's order
  Clock::time_point submitted = Clock::now();

  const std::string& name() const { return declared_name ? *declared_name : text; }
  /// Whether its place among the program's calls in the group says what it is, and not its name.
  bool keeps_its_place() const {
    return group->order == Order::program && !match && signature.kind != OpKind::remove_group;
  }
  /// The same, and it is not negotiated.
  bool in_order() const { return keeps_its_place() && !group->negotiated; }
};

/// What the ranks have agreed on about one tensor of an operation that has_rows().
struct AgreedTensor {
  std::int64_t output_rows = 0;
  std::shared_ptr<const BlockRows> rows;  ///< see BucketTensor
  std::optional<Tensor> out;              ///< made by Request::allocate
};

/// What negotiation knows of a request that the program waits for. Belongs to whoever holds the coordinator's role;
/// the watchdog reads `agreed`.
struct Pending {
  std::uint64_t flushed_at = 0;         ///< sequence of the program's first wait for it; 0: it has not waited
  int attempts = 0;                     ///< how often this rank has said that it is overdue
  Rare<Failure> objection;              ///< why this rank cannot run it: announced in place of its signature
  Rare<Failure> refusal;                ///< send_recv: how it fails once it is withdrawn, since its other rank joined
  std::optional<std::uint32_t> number;  ///< its tensor number; until it is checked, that of the last one of its name
  std::uint64_t number_checked = 0;     ///< when it was checked that this is the number of its name and signature
  std::vector<AgreedTensor> agreed_tensors;           ///< of what has_rows(), once the sizes are agreed
  std::vector<std::int64_t> sizes;                    ///< Request::sizes, or those after the output was made
  std::vector<Introduction> of_ranks;                 ///< open_group: all ranks' sizes, which introduce the backends
  bool introduced = false;                            ///< open_group: the backends have received these
  std::shared_ptr<void> scratch;                      ///< memory of a neutral contribution
  std::vector<std::shared_ptr<const void>> reserved;  ///< of Backend::reserve(), until it is complete
  std::uint64_t run = 0;                              ///< how often the program had waited when it was submitted
  std::atomic<bool> agreed{false};                    ///< the ranks have decided to run it
};

/// What the handle sees. Written by whoever holds the role; any thread may read it once `done` (the results once
/// `launched`) is set.
struct Completion {
  Rare<Failure> failure;  ///< how it failed
  int last_to_join = -1;  ///< join: a session rank
  std::vector<std::shared_ptr<const DevicePoint>>
      results;    ///< of device tensors: after these outputs hold their values
  Flag launched;  ///< of device tensors: on its way to `results`, or done
  Flag done;
};

/// What a rank knows of a name, in a group; see PendingQueue.
struct NameUse {
  SubmissionPtr in_flight;                ///< but of send_recv
  std::uint64_t finished = 0;             ///< operations that have had it
  std::uint64_t sent = 0;                 ///< send_recv: how many are in flight
  std::optional<std::uint32_t> number{};  ///< the tensor number of the last one
  std::optional<std::uint32_t> declared;  ///< its index, if it was used as a declared name
};

/// What the queue knows of an operation: under its mutex, but for what is set once by submit().
struct Queued {
  std::atomic<std::uint64_t> occurrence{0};  ///< how many of this name and group went before; equal on every rank
  std::uint64_t sequence = 0;                ///< place among this rank's submissions and flushes
  NameUse* use = nullptr;                    ///< of its name, while the name is in flight
  std::optional<std::size_t> place{};        ///< among what is in flight
  bool retired = false;                      ///< its name is free
  bool uncounted = false;  ///< of its occurrences: a neutral contribution; or its name was forgotten while it ran
  bool detached = false;   ///< the program does not wait for it; its streams may
  std::vector<Listener> listeners{};  ///< called when it is done, which `done` is marked to expect
  std::atomic<bool> flushed{false};   ///< the program's first look at it is in the queue; any thread
};

/// One operation of this rank, from submit to completion: four parts, each with one owner, in one piece of memory.
struct Submission {
  explicit Submission(Request&& asked) : request(std::move(asked)) {
    pending.objection = request.invalid;
    pending.sizes = request.sizes;
  }
  /// Whether the program may take it back. What keeps its place stays: the calls behind it have theirs.
  bool may_be_withdrawn() const { return !completion.done && !request.keeps_its_place(); }

  const Request request;
  Queued queued;
  Pending pending;
  Completion completion;
};

/// An operation that the ranks run without this one, which has joined.
struct Unsubmitted {
  std::string name;
  Signature signature;
  std::vector<std::vector<std::int64_t>> sizes;  ///< of what has_rows(): by rank of the group, as agreed
  std::vector<int> absent;                       ///< as AgreedBucket's
};

/// Operations that run as one.
struct AgreedBucket {
  std::vector<SubmissionPtr> members;
  std::vector<int> absent{};  ///< ranks of the group whose values do not count (ascending)
  std::uint64_t token = 0;    ///< of one that is matched by its order: see Bucket::token
};

}  // namespace kolo

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

#include "runtime/operation/small_vector.h"

namespace kolo {

struct Submission;
using SubmissionPtr = std::shared_ptr<Submission>;

/// What a rank knows of a name, in a group; see PendingQueue.
struct NameUse {
  SubmissionPtr in_flight;                ///< but of send_recv
  std::uint64_t finished = 0;             ///< operations that have had it
  std::optional<std::uint32_t> number{};  ///< of the last one, see Submission
};

/// One operation that this rank has asked for, from submit to completion.
///
/// The app thread fills it in; from PendingQueue::push() on it belongs to whoever holds the coordinator's role, but for
/// `done` and, once that is set, `failure` and the results, which any thread may read.
struct Submission {
  using Clock = std::chrono::steady_clock;

  std::string name;
  std::shared_ptr<const GroupInfo> group;
  Signature signature;
  SmallVector<BucketTensor> tensors;      ///< one; several if submitted together; none where nothing moves
  std::vector<std::string> member_names;  ///< of tensors submitted together
  std::vector<std::int64_t> sizes;        ///< of what has_rows(), see block_sizes.h; empty otherwise
  std::function<Tensor(const Shape&)>
      allocate;                             ///< makes the output once its shape is agreed; empty: the output is there
  std::vector<std::int64_t> output_rows;    ///< of each tensor, as agreed, of what has_rows()
  BlockRows* received_rows = nullptr;       ///< where the program wants to read how many rows came from each rank
  std::shared_ptr<const GroupInfo> parent;  ///< of send_recv: the group that the program named; `group` is the pair
  std::optional<Failure> refusal;           ///< how it fails if it can be withdrawn: its other rank has joined
  std::shared_ptr<void> scratch;      ///< memory of a stand-in: what a rank that has joined runs in the program's place
  std::optional<Failure> failure;     ///< before: a bad argument, to be announced; after: how it failed
  std::optional<std::uint64_t> turn;  ///< of a barrier: its number among those of the group
  std::shared_ptr<const GroupInfo> subject;  ///< of remove_group; of make_group once it is done
  int last_to_join = -1;                     ///< of join, once it is done; a session rank
  std::uint64_t occurrence = 0;  ///< how many operations of this name and group went before; equal on every rank
  NameUse* use = nullptr;        ///< of its name, while the name is in flight; the queue's
  mutable std::optional<std::uint32_t>
      number{};  ///< its tensor number once the plan has been asked, or what its namesake before had
  mutable bool number_checked = false;  ///< against name and signature
  std::uint64_t sequence = 0;           ///< position among this rank's submissions and flushes
  std::uint64_t flushed_at = 0;         ///< sequence of the first wait for it; 0 if nobody has waited
  bool flush_pushed = false;            ///< the program's first look at it is in the queue; its handle's thread only
  Clock::time_point submitted = Clock::now();
  std::shared_ptr<const DevicePoint> ready;  ///< of device tensors: after it inputs hold their values
  std::vector<std::shared_ptr<const DevicePoint>>
      results;            ///< after these its outputs do; once `launched`, of which any thread may read
  bool retired = false;   ///< its name is free; under the queue's mutex
  bool detached = false;  ///< the program does not wait for it any more, its streams do; under the queue's mutex
  std::atomic<bool> agreed{false};    ///< the ranks have decided to run it
  std::atomic<bool> launched{false};  ///< of device tensors: it is on its way to `results`, or done
  std::atomic<bool> done{false};
};

/// Submissions that run as one, and the ranks of the group whose values do not count (ascending).
struct AgreedBucket {
  std::vector<SubmissionPtr> members;
  std::vector<int> absent{};
};

}  // namespace kolo

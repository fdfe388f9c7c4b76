#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/device.h>
#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {

/// The rows (extents of the first dimension) of the blocks of an operation that has_rows(), where they differ: of rank
/// r at [r] for all_gather and gather; from rank s to rank d at [s * ranks + d] for all_to_all.
using BlockRows = std::vector<std::int64_t>;

/// One tensor of a bucket on this rank. `in` and `out` overlap in-place only: they are the same memory for all_reduce,
/// broadcast, reduce and all_to_all; `in` is this rank's block of `out` for all_gather and gather; `out` is this rank's
/// rows of `in` for reduce_scatter and scatter.
///
/// `in` has the signature's shape on every rank, except for its first dimension where the ranks' rows differ. Ranks
/// other than the root have no memory for the `in` of scatter, and ignore the `out` of reduce and gather.
///
/// send_recv (the group is a pair): the root sends `in`, the other rank receives into `out`.
struct BucketTensor {
  Tensor in;
  Tensor out;
  /// Equal on every rank; null: all blocks have the same rows. With rows all_to_all is never in-place.
  std::shared_ptr<const BlockRows> rows{};
};

class DevicePoint;  // kolo/device_backend.h

/// Tensors fused into one collective: a list, not a flat buffer, so that a backend that can gather directly needs no
/// staging. All tensors share kind, op, dtype, device, root and scales (`signature.shape` is that of the first). Length
/// and order of the list, shapes of `in` (see BucketTensor), `absent` and `divide_by` are equal on every rank.
struct Bucket {
  Signature signature;
  std::vector<BucketTensor> tensors;
  std::vector<int>
      absent{};       ///< joined ranks of the group, ascending: their values do not count, their memory is scratch
  int divide_by = 1;  ///< average: the divisor of the sum
  /// Device tensors: the points after which inputs hold their values and outputs may be written.
  std::vector<std::shared_ptr<const DevicePoint>> ready{};
  bool world_only = false;  ///< no group except the world existed when the ranks agreed on this bucket

  /// Elements and bytes of all inputs.
  std::int64_t elements() const;
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(signature.dtype); }
};

/// A collective in progress on this rank.
class Operation {
 public:
  /// Abandons what is unfinished; never waits for peers.
  virtual ~Operation() = default;

  /// Advances as far as possible without waiting. Returns true once the operation is complete: inputs may be reused and
  /// outputs hold the result. Throws Error if the operation failed; the caller then destroys it.
  virtual bool step() = 0;

  /// True if progress of peers is only seen by calling step() again (MPI). False: peers ring this rank's doorbell when
  /// they advance.
  virtual bool needs_polling() const = 0;

  /// True if the last step() advanced the operation without completing it. The waiting thread then keeps polling: its
  /// peers are advancing as well.
  virtual bool moved() const { return false; }

  /// Device tensors: the point after which inputs may be reused and outputs hold the result. Null for host tensors, and
  /// until all work before that point is enqueued.
  virtual std::shared_ptr<const DevicePoint> result() const { return nullptr; }

  /// Duration of a complete operation in seconds, by the device's clock, if the backend measures it.
  virtual std::optional<double> seconds() const { return std::nullopt; }

  /// While true, no other bucket may be started on this backend: step() has further parts of this operation to start.
  virtual bool holds_backend() const { return false; }
};

/// Allocates memory whose tensors a backend need not stage: shared with peers, or registered. Thread-safe. The memory
/// may outlive the source.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  /// `bytes` zeros on `device`, aligned to 64 bytes. Null if there is no such memory, or none left: tensors in any
  /// other memory work, but slower.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, Device device) = 0;
};

/// What one member of a group tells the others once, before its backend is used: numbers that the backend understands.
using Introduction = std::vector<std::int64_t>;

/// How bytes move for one group. An object serves one group and is used by one thread at a time.
///
/// Every rank must choose the same backend for a bucket, so `supports` is a pure function of its argument and of what
/// the ranks agreed on when the backend was made. Buckets are started in the same order on all ranks of the group. What
/// start() needs is taken by the constructor or by reserve(): of a supported bucket it does not fail locally.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "local", "mpi", …
  virtual std::string_view name() const = 0;

  virtual bool supports(const Signature& signature) const = 0;

  /// Of what no backend of the group supports: why this one does not, and what to do; the error of such operations.
  /// Empty: another one may say. As pure as `supports`.
  virtual std::string refusal(const Signature& signature) const {
    (void)signature;
    return "";
  }

  /// Takes what operations of this signature need and the backend has not got yet, such as memory on first use: called
  /// before this rank says that one is ready. What it returns (or null) is kept until that is complete or given up.
  /// Throws Error: then the operation fails on every rank, and the backend goes on.
  virtual std::shared_ptr<const void> reserve(const Signature& signature) {
    (void)signature;
    return nullptr;
  }

  /// Begins a collective and waits for no peer. The bucket must stay alive and unchanged, and the tensors' memory
  /// alive, until step() returns true or the operation is destroyed. The operation is destroyed before the backend.
  virtual std::unique_ptr<Operation> start(const Bucket& bucket) = 0;
  std::unique_ptr<Operation> start(Bucket&&) = delete;  ///< a temporary would not live long enough

  /// Makes the backend that serves `group`, a subset of this backend's ranks, on each of the members; waits for none.
  /// The backend of a pair (GroupInfo::is_pair) serves send_recv only, at once; any other one is introduced first.
  /// Null, on all members, if there is none. Throws Error.
  virtual std::unique_ptr<Backend> for_group(const GroupInfo& group) = 0;

  /// What the group's other members must know of this rank; called once. Throws Error.
  virtual Introduction introduction() { return {}; }

  /// Receives the introductions of all members, by rank of the group, before anything is started; called once. Returns
  /// whether the backend serves the group, the same on every member. Throws Error if this rank cannot take part.
  virtual bool introduce(std::span<const Introduction> members) {
    (void)members;
    return true;
  }

  /// Bytes copied into and out of the backend's staging memory since it was made.
  virtual std::uint64_t staged_bytes() const { return 0; }

  /// Null: tensors need no special memory. Backends that for_group() makes share their parent's.
  virtual std::shared_ptr<MemorySource> memory() { return nullptr; }

  /// Whether data move only while the process calls the library that moves them (MPI): peers may need what operations
  /// that are complete here have left with it.
  virtual bool must_be_called() const { return false; }

  /// Of the world's backend: called now and then after operations of backends that must be called, of any group, and
  /// after a group was removed. Lets the library, and what has not ended yet, go on, and waits for nobody. `in_flight`:
  /// operations of the program are; else it may itself be calling the library.
  virtual void progress(bool in_flight) { (void)in_flight; }

  /// Of the world's backend, when all ranks have finished with it: whether what they have started is complete on every
  /// rank. Called again and again until it is true, or abandon() is called.
  virtual bool settled() { return true; }

  /// Called once after a peer left without finishing: from now on nothing may be released collectively.
  virtual void abandon() noexcept = 0;
};

/// Backends in order of preference: the first that supports a bucket runs it.
using BackendList = std::vector<std::unique_ptr<Backend>>;

}  // namespace kolo

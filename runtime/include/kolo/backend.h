#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <kolo/device.h>
#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {

/// How many rows (steps of the first dimension) the blocks of an operation that has_rows() have, where they differ: of
/// rank r at [r] for all_gather and gather; from rank s to rank d at [s * ranks + d] for all_to_all.
using BlockRows = std::vector<std::int64_t>;

/// One tensor of a bucket on this rank. `in` and `out` do not overlap, unless this rank's share of the larger is the
/// smaller (in place): all of it for all_reduce, broadcast, reduce and all_to_all; the rank's block of `out` for
/// all_gather and gather; the rank's rows of `in` for reduce_scatter and scatter.
///
/// `in` has the signature's shape on every rank (but for its first dimension where the ranks' rows differ), but no
/// memory where nothing is read: for scatter, on ranks that are not the root. `out` is ignored where nothing is
/// written: for reduce and gather, on ranks that are not the root.
///
/// send_recv (the group is a pair): the root sends `in`, the other rank receives into `out`.
struct BucketTensor {
  Tensor in;
  Tensor out;
  std::shared_ptr<const BlockRows>
      rows{};  ///< equal on every rank; null: all blocks are equal. Then never in place for all_to_all
};

class DevicePoint;  // kolo/device_backend.h

/// Tensors that one collective serves: a list, not a flat buffer, so that a backend that can gather directly never pays
/// for staging. All tensors share kind, op, dtype, device, root and scales (`signature.shape` is that of the first).
/// Length and order of the list, shapes of `in` (see BucketTensor), `absent` and `divide_by` are equal on every rank.
struct Bucket {
  Signature signature;
  std::vector<BucketTensor> tensors;
  std::vector<int> absent{};  ///< ranks of the group, ascending, whose values do not count: they have joined. Their
                              ///< memory is scratch
  int divide_by = 1;          ///< of average: what the sum is divided by; the ranks of the group that took part, or all
  std::vector<std::shared_ptr<const DevicePoint>>
      ready{};              ///< of device tensors: after these, inputs hold their values and outputs may be written
  bool world_only = false;  ///< no group but the world had been made when the ranks agreed on it

  /// Of all inputs.
  std::int64_t elements() const;
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(signature.dtype); }
};

/// A collective in progress on this rank.
class Operation {
 public:
  /// Abandons what is unfinished; never waits for peers.
  virtual ~Operation() = default;

  /// Advances as far as possible without waiting, and returns whether the operation is complete: then inputs may be
  /// reused and outputs hold the result. Throws Error if it failed; it is destroyed then.
  virtual bool step() = 0;

  /// Whether only calling step() again shows that peers have moved (MPI). False: peers ring this rank's doorbell when
  /// they do.
  virtual bool needs_polling() const = 0;

  /// Whether the last step() advanced an operation that is not complete yet. Whoever waits for it then goes on looking:
  /// peers that are at work on it too will have more for it soon.
  virtual bool moved() const { return false; }

  /// Of device tensors: the point after which inputs may be reused and outputs hold the result; null until it is
  /// certain that the work is on its way to that point, and for host tensors.
  virtual std::shared_ptr<const DevicePoint> result() const { return nullptr; }

  /// How long it ran, in seconds, by a device's clock; of a complete operation whose backend measures that.
  virtual std::optional<double> seconds() const { return std::nullopt; }

  /// While true, no other bucket may be started on this backend: more of this operation is to be started first, by
  /// step().
  virtual bool holds_backend() const { return false; }
};

/// Allocates memory whose tensors a backend need not stage: shared with peers, or registered. Used by any thread; the
/// memory may outlive it.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  /// `bytes` zeros on `device`, aligned to 64 bytes; null if there is no such memory, or no more: any other memory
  /// does, but is slower.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, Device device) = 0;
};

/// How bytes move for one group. An object serves one group and is used by one thread at a time.
///
/// Which backend runs a bucket must come out equal on every rank, so `supports` is a pure function of its argument and
/// of what the ranks agreed on when the backend was made. Buckets are started in the same order on all ranks of the
/// group. What may fail for lack of resources is reserved in the constructor: start() of a supported bucket does not
/// fail locally.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "local", "mpi", …
  virtual std::string_view name() const = 0;

  virtual bool supports(const Signature& signature) const = 0;

  /// Begins a collective and waits for no peer. The bucket and the tensors' memory must stay alive, and the
  /// bucket as it is, until step() returns true or the operation is destroyed; the operation is destroyed before the
  /// backend.
  virtual std::unique_ptr<Operation> start(const Bucket& bucket) = 0;
  std::unique_ptr<Operation> start(Bucket&&) = delete;  ///< it would not stay

  /// Makes the backend that serves `group`, some of the ranks this one serves. Collective over the group's members,
  /// which call it in an agreed order; may wait for them. But of a pair (GroupInfo::pair) it serves send_recv and
  /// nothing else, and never waits for the other rank. Null, on all members, if there is none. Throws Error.
  virtual std::unique_ptr<Backend> for_group(const GroupInfo& group) = 0;

  /// Bytes copied into and out of the backend's staging memory so far.
  virtual std::uint64_t staged_bytes() const { return 0; }

  /// Null: tensors need no special memory. Backends that for_group() makes share their parent's.
  virtual std::shared_ptr<MemorySource> memory() { return nullptr; }

  /// Called once after a peer left without finishing: release nothing collectively from now on.
  virtual void abandon() noexcept = 0;
};

/// In order of preference: the first backend that supports a bucket runs it.
using BackendList = std::vector<std::unique_ptr<Backend>>;

}  // namespace kolo

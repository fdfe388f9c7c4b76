#pragma once

#include <array>
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
  /// Of a group whose operations are matched by their order: says which one this is, and how it is described; equal on
  /// every rank unless the ranks' programs differ. 0: the ranks have agreed on the bucket.
  std::uint64_t token = 0;
  bool world_only = false;  ///< no group except the world used devices when the ranks agreed on this bucket

  /// Elements and bytes of all inputs.
  std::int64_t elements() const;
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(signature.dtype); }
};

/// A collective in progress on this rank.
class Operation {
 public:
  /// Abandons what is unfinished; never waits for peers.
  virtual ~Operation() = default;

  /// Advances without waiting, by a bounded amount of work: what other groups have in flight has its turn between two
  /// steps. Returns true once the operation is complete: inputs may be reused and outputs hold the result. Throws Error
  /// if the operation failed; the caller then destroys it.
  virtual bool step() = 0;

  /// True if progress of peers is only seen by calling step() again (MPI). False: peers ring this rank's doorbell when
  /// they advance.
  virtual bool needs_polling() const = 0;

  /// True if the last step() advanced the operation without completing it, or ended because it had done enough. The
  /// waiting thread then keeps polling: there is more to do, and its peers are advancing as well.
  virtual bool moved() const { return false; }

  /// Device tensors: the point after which inputs may be reused and outputs hold the result. Null for host tensors, and
  /// until all work before that point is enqueued.
  virtual std::shared_ptr<const DevicePoint> result() const { return nullptr; }

  /// Duration of a complete operation in seconds, by the device's clock, if the backend measures it.
  virtual std::optional<double> seconds() const { return std::nullopt; }

  /// How the bytes of a complete operation travelled, in a word or two, where the backend has several ways: for
  /// reports. Valid for ever.
  virtual const char* method() const { return ""; }

  /// While true, no other bucket may be started on this backend: step() has further parts of this operation to start.
  virtual bool holds_backend() const { return false; }
};

/// Allocates memory whose tensors a backend need not stage: shared with peers, or registered. Thread-safe. The memory
/// may outlive the source.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  /// Makes memory of the program such memory, while the source lives: see Session::adopt(). Throws Error. False: this
  /// source has no way to do that.
  virtual bool adopt(void* data, std::size_t bytes) {
    (void)data, (void)bytes;
    return false;
  }

  /// `bytes` zeros on `device`, aligned to 64 bytes. Null if there is no such memory, or none left: tensors in any
  /// other memory work, but slower.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, Device device) = 0;
};

/// What one member of a group tells the others once, before its backend is used: numbers that the backend understands.
using Introduction = std::vector<std::int64_t>;

/// Where bytes of one rank lie, as the lane to another one understands it.
using LaneAddress = std::array<std::uint64_t, 6>;

/// Carries bytes between this rank and one other: each way in order, with room for some. Used by one thread at a time.
/// Some lanes also let one rank copy what lies in the other's memory.
class ByteLane {
 public:
  virtual ~ByteLane() = default;
  /// Takes as many bytes as there is room for, from the first on; returns how many. Never waits.
  virtual std::size_t write(std::span<const std::byte> bytes) = 0;
  /// Receives as many of the next bytes as have come; returns how many. Never waits.
  virtual std::size_t read(std::span<std::byte> bytes) = 0;
  /// Whether read() might receive something now.
  virtual bool pending() const = 0;

  /// A second way, for large messages: what it carries is in order with itself alone. Whether a message of `bytes` that
  /// this rank sends is to take it.
  virtual bool has_bulk(std::size_t bytes) {
    (void)bytes;
    return false;
  }
  /// As write() and read(), there: a piece of the `left` bytes at `data`; null: bytes that nobody wants, of any value.
  /// `all`: of the message.
  virtual std::size_t write_bulk(const std::byte* data, std::size_t left) {
    (void)data, (void)left;
    return 0;
  }
  virtual std::size_t read_bulk(std::byte* data, std::size_t left, std::size_t all) {
    (void)data, (void)left, (void)all;
    return 0;
  }
  /// Whether read_bulk() would receive something of what is left.
  virtual bool pending_bulk(std::size_t left) const {
    (void)left;
    return false;
  }

  /// As of Operation: whether only another call shows that the peer has read or written.
  virtual bool needs_polling() const = 0;
  /// Whether this rank waits for something from the peer, which need not ring for it else.
  virtual void listen(bool waits) { (void)waits; }

  /// Lets the peer fetch() these bytes, until withdraw(), or until it has said that it will do so no more. They must
  /// not change meanwhile. None: it cannot, or had better be sent them. Followed by arrived() or given_up().
  virtual std::optional<LaneAddress> show(std::span<const std::byte> bytes) {
    (void)bytes;
    return std::nullopt;
  }
  /// The peer has them, in whatever way; or they are withdrawn.
  virtual void arrived(std::span<const std::byte> bytes) { (void)bytes; }
  virtual void given_up(std::span<const std::byte> bytes) { (void)bytes; }
  /// Something that this rank has shown may go: whatever the peer reads of it from now on, fetch() drops. Waits for a
  /// copy of one call of fetch() at most, and for nobody who can be stopped alone. The caller then tells the peer what.
  virtual void withdraw() noexcept {}
  /// How often the peer has done so: known at once, whatever lies between the two and has not been read.
  virtual std::uint64_t withdrawn() const { return 0; }

  /// all: copied. withdrawn: something was withdrawn that the caller has not heard of. impossible: it must be sent.
  enum class Fetched : std::uint8_t { all, withdrawn, impossible };
  /// Copies some of what the peer shows, from `offset` on; never waits. `heard`: how often the peer has withdrawn
  /// something, as far as the caller has been told. `to` has no certain content unless this returns `all`.
  virtual Fetched fetch(const LaneAddress& address, std::size_t offset, std::span<std::byte> to, std::uint64_t heard) {
    (void)address, (void)offset, (void)to, (void)heard;
    return Fetched::impossible;
  }
};

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
  /// The backend of a pair (GroupInfo::is_pair) serves send_recv only, at once unless it is a DeviceBackend; any other
  /// one is introduced first.
  /// Null, on all members, if there is none. Throws Error.
  virtual std::unique_ptr<Backend> for_group(const GroupInfo& group) = 0;

  /// Whether its operations compare tokens: they are complete on a rank when all members have begun them with the same
  /// one, touch no other rank's tensors before, and throw Error{mismatch} when one has begun with another.
  virtual bool compares_tokens() const { return false; }

  /// Of the world's backend: what carries messages between this rank and `peer`, for as long as the backend lives;
  /// asked for once. Null, on both ranks, if there is none.
  virtual std::unique_ptr<ByteLane> lane(int peer) {
    (void)peer;
    return nullptr;
  }

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

  /// What it knows about this machine by measuring, then or now, as a text for the file that KOLO_TUNING names. Empty:
  /// nothing.
  virtual std::string findings() const { return ""; }

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

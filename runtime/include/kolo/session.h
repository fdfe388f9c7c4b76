#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <kolo/config.h>
#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/handle.h>
#include <kolo/op.h>
#include <kolo/tensor.h>
#include <kolo/world.h>

namespace kolo {

/// A declared tensor name: what declare() returns. Valid for the session that made it.
struct TensorId {
  std::uint32_t index = 0;
};

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  Group group{};            ///< default: the world
  double prescale = 1;      ///< multiplies every input (in f32 for 16-bit floats)
  double postscale = 1;     ///< multiplies the result
  void* ready = nullptr;    ///< the CUDA stream that wrote `in`; ignored for host tensors
};

struct BroadcastOptions {
  int root = 0;             ///< the rank of the group whose values everybody gets
  Group group{};
  void* ready = nullptr;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  int root = 0;             ///< the rank of the group that gets the result
  Group group{};
  double prescale = 1;
  double postscale = 1;
  void* ready = nullptr;
};

struct AllGatherOptions {
  Group group{};
  void* ready = nullptr;
};

struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::sum;
  Group group{};
  double prescale = 1;
  double postscale = 1;
  void* ready = nullptr;
};

struct AllToAllOptions {
  Group group{};
  void* ready = nullptr;
};

struct GatherOptions {
  int root = 0;             ///< the rank of the group that gets all blocks
  Group group{};
  void* ready = nullptr;
};

struct ScatterOptions {
  int root = 0;             ///< the rank of the group whose rows are dealt out
  Group group{};
  void* ready = nullptr;
};

/// What a session has done so far, on this rank.
struct SessionStats {
  std::uint64_t agreements = 0;             ///< decisions to run something, one per bucket
  std::uint64_t tensors = 0;                ///< tensors reduced, copied or exchanged
  std::uint64_t buckets = 0;                ///< collectives that served them
  std::uint64_t full_announcements = 0;     ///< tensors announced with name and signature
  std::uint64_t control_bytes_sent = 0;     ///< payload of control messages, all peers together
  std::uint64_t control_bytes_received = 0;
  std::uint64_t control_messages_sent = 0;
};

/// One rank's membership in a world: the object that all operations go through.
///
/// Making and closing a session are collective. Several sessions may live in one process, also as ranks in threads (see
/// thread_worlds()). All member functions are thread-safe unless they say otherwise.
///
///     kolo::Session session;                                        // under mpirun, or alone
///     std::vector<float> grad(1000, 1.0f);
///     session.all_reduce("grad", kolo::view(grad), {.op = kolo::ReduceOp::average});
class Session {
 public:
  /// Joins the launcher's world with the settings of the environment. Throws Error.
  Session();
  explicit Session(const Config& config);

  /// Joins `world`. Throws Error{mismatch} on every rank if settings that must agree do not.
  Session(World world, const Config& config);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Leaves. Waits until every rank has left, so that nobody is cut off in the middle of something, unless an exception is
  /// unwinding the stack: then the departure is announced and nobody is waited for.
  ~Session();

  /// Leaves now, collectively; operations submitted later throw Error{closed}. Idempotent.
  void close();

  int rank() const;
  int size() const;
  /// Index among the ranks of this node, and their number.
  int local_rank() const;
  int local_size() const;
  Group world() const;
  const Config& config() const;

  /// Gives a name its id, once per name; asking again returns the same id. Local; the same order is not required anywhere.
  TensorId declare(std::string_view name);

  /// Starts reducing `in` over all ranks of the group into `out` (may be the same memory), and returns at once.
  ///
  /// tensor   names the tensor across ranks (`session.declare(name)`, once); unique among operations in flight
  /// in, out  contiguous; shape, dtype and device kind equal on every rank
  /// options  op, group, scales and, for device tensors, the stream that wrote `in`
  ///
  /// Storage must stay alive and untouched until Handle::wait() returns or the handle dies.
  /// Errors: throws Error{in_flight | closed}; Handle::wait() throws invalid_argument, mismatch, closed, aborted or backend,
  /// on every rank alike.
  /// Cost on hosts: each rank sends and receives 2(n-1)/n * in.bytes(); small tensors (n-1) * in.bytes() in one exchange.
  Handle all_reduce_async(TensorId tensor, Tensor in, Tensor out, const AllReduceOptions& options = {});
  Handle all_reduce_async(std::string_view name, Tensor in_out, const AllReduceOptions& options = {});
  /// The blocking form.
  void all_reduce(std::string_view name, Tensor in_out, const AllReduceOptions& options = {});

  /// Starts copying `tensor` of rank `options.root` over that of every other rank of the group. Contracts as above.
  Handle broadcast_async(TensorId tensor, Tensor in_out, const BroadcastOptions& options = {});
  Handle broadcast_async(std::string_view name, Tensor in_out, const BroadcastOptions& options = {});
  void broadcast(std::string_view name, Tensor in_out, const BroadcastOptions& options = {});

  /// Starts reducing `in` over all ranks of the group into `out` of rank `options.root` (may be the same memory). Contracts as of
  /// all_reduce, but that `out` is ignored on other ranks: pass `{}`.
  ///
  /// Cost on hosts: each rank sends (n-1)/n * in.bytes() to its peers and 1/n to the root; small tensors in.bytes() to the root.
  Handle reduce_async(TensorId tensor, Tensor in, Tensor out, const ReduceOptions& options = {});
  /// In place: `in_out` changes on the root only.
  Handle reduce_async(std::string_view name, Tensor in_out, const ReduceOptions& options = {});
  void reduce(std::string_view name, Tensor in_out, const ReduceOptions& options = {});

  /// Starts gathering a block from every rank of the group into `out` of every rank, in the order of the ranks.
  ///
  /// in   this rank's block; one dimension at least; equal shapes on every rank
  /// out  as `in`, with n times the rows: block r stands at rows [r * rows, (r + 1) * rows). In place: `in` is this rank's block
  ///      of `out`
  ///
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: each rank sends and receives (n-1) * in.bytes(), and copies n * in.bytes() out of staging.
  Handle all_gather_async(TensorId tensor, Tensor in, Tensor out, const AllGatherOptions& options = {});
  Handle all_gather_async(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options = {});
  void all_gather(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options = {});

  /// Starts reducing `in` over all ranks of the group and leaves every rank its rows of the result.
  ///
  /// in   one dimension at least; equal shapes on every rank
  /// out  as `in`, with the rows `rows_of_rank(in.shape[0], n, r)` on rank r of the group: any number of rows works. In place:
  ///      `out` is these rows of `in`
  ///
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: each rank sends and receives (n-1)/n * in.bytes(), and copies in.bytes() into staging.
  Handle reduce_scatter_async(TensorId tensor, Tensor in, Tensor out, const ReduceScatterOptions& options = {});
  Handle reduce_scatter_async(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options = {});
  void reduce_scatter(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options = {});

  /// Starts sending block j of `in` to rank j of the group, whose block i of `out` it becomes if this is rank i.
  ///
  /// in, out  equal shapes on every rank; the first dimension is a multiple of n, and cut into n equal blocks; may be the same
  ///          memory
  ///
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: each rank sends and receives (n-1)/n * in.bytes(), and copies in.bytes() into staging and out of it.
  Handle all_to_all_async(TensorId tensor, Tensor in, Tensor out, const AllToAllOptions& options = {});
  Handle all_to_all_async(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options = {});
  void all_to_all(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options = {});

  /// Starts gathering a block from every rank of the group into `out` of rank `options.root`. Contracts as of all_gather, but that
  /// `out` is ignored on other ranks: pass `{}`.
  ///
  /// Cost on hosts: each rank sends in.bytes() to the root, which copies n * in.bytes() out of staging.
  Handle gather_async(TensorId tensor, Tensor in, Tensor out, const GatherOptions& options = {});
  Handle gather_async(std::string_view name, Tensor in, Tensor out, const GatherOptions& options = {});
  void gather(std::string_view name, Tensor in, Tensor out, const GatherOptions& options = {});

  /// Starts dealing out the rows of `in` of rank `options.root` to the ranks of the group.
  ///
  /// in   one dimension at least; shape and dtype equal on every rank. Its memory is used on the root only, and may be null
  ///      elsewhere: `{.shape = {rows, columns}, .dtype = DType::f32}`
  /// out  as `in`, with the rows `rows_of_rank(in.shape[0], n, r)` on rank r of the group. In place on the root: `out` is its rows
  ///      of `in`
  ///
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: the root sends (n-1)/n * in.bytes(), and copies in.bytes() into staging.
  Handle scatter_async(TensorId tensor, Tensor in, Tensor out, const ScatterOptions& options = {});
  Handle scatter_async(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options = {});
  void scatter(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options = {});

  /// Completes on no rank before every rank of the group has called it. Several may be in flight; they match in order.
  Handle barrier_async(const Group& group = {});
  void barrier(const Group& group = {});

  /// Makes a group of these ranks of the session, in any order. Collective over the session: every rank calls it, member or not,
  /// with the same ranks, and in the same order as other calls that make or remove groups. Throws Error{mismatch} on every rank
  /// if the ranks differ, Error{invalid_argument} if they are not distinct ranks of the session.
  Group new_group(std::span<const int> ranks);

  /// Makes a group for each colour, of the ranks that passed it, and returns this rank's; a negative colour joins none. Members
  /// are ordered by session rank. Collective over the session.
  Group split(int color);

  /// Removes a group when its members have nothing in flight in it any more. Collective over the session, like new_group().
  void remove_group(const Group& group);

  SessionStats stats() const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kolo

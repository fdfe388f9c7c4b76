#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/backend.h>
#include <kolo/config.h>
#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/handle.h>
#include <kolo/memory.h>
#include <kolo/op.h>
#include <kolo/options.h>
#include <kolo/tensor.h>
#include <kolo/world.h>

namespace kolo {

/// A declared tensor name: what declare() returns. Valid for the session that made it.
struct TensorId {
  std::uint32_t index = 0;
};

/// Counters of a session on this rank since it was made.
struct SessionStats {
  std::uint64_t agreements = 0;          ///< decisions to run one bucket or several
  std::uint64_t tensors = 0;             ///< tensors reduced, copied or exchanged
  std::uint64_t buckets = 0;             ///< collectives run for these tensors
  std::uint64_t full_announcements = 0;  ///< tensors announced with name and signature
  std::uint64_t control_bytes_sent = 0;  ///< payload of control messages, all peers together
  std::uint64_t control_bytes_received = 0;
  std::uint64_t control_messages_sent = 0;
  std::uint64_t staged_bytes = 0;  ///< copied into or out of a backend's staging memory
  /// How often a thread found work that nobody had woken it for: 0 unless kolo has a bug.
  std::uint64_t late_wakeups = 0;
  double bucket_seconds = 0;  ///< sum of the buckets' times from start to completion; with `Config::timings` only
  /// How the bytes of the bucket that was completed last travelled, where its backend has several ways; "" elsewhere.
  const char* method = "";
  std::uint64_t lost_ranks = 0;  ///< that are gone without having left: groups that have one fail
  /// Largest use of the GPU's memory, by all processes, that stats() has seen; 0 without a GPU.
  std::uint64_t device_peak_bytes = 0;
};

/// One rank's membership in a world; all operations are its member functions.
///
/// Making and closing a session are collective. Several sessions may live in one process, also as ranks in threads (see
/// thread_worlds()). All member functions are thread-safe unless they say otherwise.
///
///     kolo::Session session;                                        // under mpirun or torchrun, or alone
///     std::vector<float> grad(1000, 1.0f);
///     session.all_reduce("grad", kolo::view(grad), {.op = kolo::ReduceOp::average});
class Session {
 public:
  /// Joins the launcher's world with the settings of the environment. Throws Error.
  Session();
  explicit Session(const Config& config);

  /// Joins `world`. Throws Error{mismatch} on every rank if settings that must agree do not, Error{invalid_argument} if
  /// its ranks are MPI's and MPI was initialised with less than MPI_THREAD_SERIALIZED.
  Session(World world, const Config& config);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Leaves, and waits until every rank has left. While an exception unwinds the stack it only announces the departure,
  /// without waiting for other ranks. Waits for the functions of Handle::on_done() in both cases.
  ~Session();

  /// Leaves now, collectively; operations submitted later throw Error{closed}. Returns when all functions of
  /// Handle::on_done() have run, unless one of them calls it. Idempotent.
  void close();

  /// Leaves without waiting for other ranks, as during unwinding: operations in flight fail, on other ranks with
  /// Error{aborted}. Idempotent.
  void abandon();

  int rank() const;
  int size() const;
  /// Index among the ranks of this node, and their number.
  int local_rank() const;
  int local_size() const;
  /// The GPU of this rank's device tensors, chosen by the rank's index on the node; the host if no GPU can be used.
  Device device() const;
  Group world() const;
  const Config& config() const;

  /// The id of a name, always the same one. Local; ranks may declare names in any order.
  TensorId declare(std::string_view name);

  /// Starts reducing `in` over all ranks of the group into `out` (may be the same memory), and returns at once.
  ///
  /// tensor   names the tensor across ranks (`session.declare(name)`, once); unique among operations in flight
  /// in, out  contiguous; shape, dtype and device kind equal on every rank
  /// options  op, group, scales and, for device tensors, the stream that wrote `in`
  ///
  /// Storage must stay alive and untouched until Handle::wait() returns or the handle dies.
  /// Errors: throws Error{in_flight | closed}; Handle::wait() throws the same invalid_argument, mismatch, closed,
  /// aborted or backend on every rank. Cost on hosts: each rank sends and receives 2(n-1)/n * in.bytes(); small tensors
  /// (n-1) * in.bytes() in one exchange.
  Handle all_reduce_async(TensorId tensor, Tensor in, Tensor out, const AllReduceOptions& options = {});
  Handle all_reduce_async(std::string_view name, Tensor in_out, const AllReduceOptions& options = {});
  /// The blocking form.
  void all_reduce(std::string_view name, Tensor in_out, const AllReduceOptions& options = {});
  /// In a group made with Order::program operations have no name, and are not negotiated (but see GroupInfo::in_order):
  /// the n-th call of one member meets the n-th of the others. Arguments that cannot work throw at once, and take no
  /// place in the order. Errors as above, except that a mismatch, a time-out, or an Allocate that throws ends the
  /// group. So for each operation below.
  Handle all_reduce_async(Tensor in, Tensor out, const AllReduceOptions& options);
  Handle all_reduce_async(Tensor in_out, const AllReduceOptions& options);
  void all_reduce(Tensor in_out, const AllReduceOptions& options);

  /// Starts copying `tensor` of rank `options.root` over that of every other rank of the group. Contracts as above.
  Handle broadcast_async(TensorId tensor, Tensor in_out, const BroadcastOptions& options = {});
  Handle broadcast_async(std::string_view name, Tensor in_out, const BroadcastOptions& options = {});
  void broadcast(std::string_view name, Tensor in_out, const BroadcastOptions& options = {});
  Handle broadcast_async(Tensor in_out, const BroadcastOptions& options);
  void broadcast(Tensor in_out, const BroadcastOptions& options);

  /// Starts reducing `in` over all ranks of the group into `out` of rank `options.root` (may be the same memory).
  /// Contracts as of all_reduce, except that other ranks ignore `out`: pass `{}`.
  ///
  /// Cost on hosts: each rank sends (n-1)/n * in.bytes() to its peers and 1/n to the root; small tensors in.bytes() to
  /// the root.
  Handle reduce_async(TensorId tensor, Tensor in, Tensor out, const ReduceOptions& options = {});
  /// In-place: `in_out` changes on the root only.
  Handle reduce_async(std::string_view name, Tensor in_out, const ReduceOptions& options = {});
  void reduce(std::string_view name, Tensor in_out, const ReduceOptions& options = {});
  Handle reduce_async(Tensor in, Tensor out, const ReduceOptions& options);
  void reduce(Tensor in_out, const ReduceOptions& options);

  /// Starts gathering a block from every rank of the group into `out` of every rank, in the order of the ranks.
  ///
  /// in   this rank's block; one dimension at least; shapes are equal on every rank except for the first extent, the
  ///      rows
  /// out  as `in`, with the rows of all ranks. In-place: `in` is this rank's block of `out`. If the number of rows is
  ///      not known: `{}` and `options.allocate`; the ranks then agree a second time, once all have allocated
  ///
  /// A rank that has joined has no rows; `out` may then have more rows than are received.
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: each rank sends and receives (n-1) * in.bytes(), and copies n * in.bytes() out of staging.
  Handle all_gather_async(TensorId tensor, Tensor in, Tensor out, const AllGatherOptions& options = {});
  Handle all_gather_async(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options = {});
  void all_gather(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options = {});
  Handle all_gather_async(Tensor in, Tensor out, const AllGatherOptions& options);
  void all_gather(Tensor in, Tensor out, const AllGatherOptions& options);

  /// Starts reducing `in` over all ranks of the group and leaves every rank its rows of the result.
  ///
  /// in   one dimension at least; equal shapes on every rank
  /// out  as `in`, with the rows `rows_of_rank(in.shape[0], n, r)` on rank r of the group, for any number of rows.
  ///      In-place: `out` is these rows of `in`
  ///
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: each rank sends and receives (n-1)/n * in.bytes(), and copies in.bytes() into staging.
  Handle reduce_scatter_async(TensorId tensor, Tensor in, Tensor out, const ReduceScatterOptions& options = {});
  Handle reduce_scatter_async(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options = {});
  void reduce_scatter(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options = {});
  Handle reduce_scatter_async(Tensor in, Tensor out, const ReduceScatterOptions& options);
  void reduce_scatter(Tensor in, Tensor out, const ReduceScatterOptions& options);

  /// Starts exchanging blocks: block j of `in` on rank i becomes block i of `out` on rank j of the group.
  ///
  /// in   one dimension at least; shapes are equal on every rank except for the first extent, the sum of
  ///      `options.splits`, or n equal blocks. A block may have no rows
  /// out  as `in`, with the rows received; the same memory only if all blocks are equal. `{}` with
  ///      `options.allocate`, as of all_gather
  ///
  /// A rank that has joined sends no rows; blocks sent to it are dropped.
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: each rank sends and receives (n-1)/n * in.bytes(), and copies in.bytes() into and out of staging.
  Handle all_to_all_async(TensorId tensor, Tensor in, Tensor out, const AllToAllOptions& options = {});
  Handle all_to_all_async(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options = {});
  void all_to_all(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options = {});
  Handle all_to_all_async(Tensor in, Tensor out, const AllToAllOptions& options);
  void all_to_all(Tensor in, Tensor out, const AllToAllOptions& options);

  /// Starts gathering a block from every rank of the group into `out` of rank `options.root`. Contracts as of
  /// all_gather, except that other ranks ignore `out`: pass `{}`.
  ///
  /// Cost on hosts: each rank sends in.bytes() to the root, which copies n * in.bytes() out of staging.
  Handle gather_async(TensorId tensor, Tensor in, Tensor out, const GatherOptions& options = {});
  Handle gather_async(std::string_view name, Tensor in, Tensor out, const GatherOptions& options = {});
  void gather(std::string_view name, Tensor in, Tensor out, const GatherOptions& options = {});
  Handle gather_async(Tensor in, Tensor out, const GatherOptions& options);
  void gather(Tensor in, Tensor out, const GatherOptions& options);

  /// Starts scattering the rows of `in` of rank `options.root` over the ranks of the group.
  ///
  /// in   one dimension at least; shape and dtype equal on every rank. Its memory is used on the root only, and may be
  ///      null elsewhere: `{.shape = {rows, columns}, .dtype = DType::f32}`
  /// out  as `in`, with the rows `rows_of_rank(in.shape[0], n, r)` on rank r of the group. In-place on the root:
  ///      `out` is its rows of `in`
  ///
  /// Lifetime and errors as of all_reduce.
  /// Cost on hosts: the root sends (n-1)/n * in.bytes(), and copies in.bytes() into staging.
  Handle scatter_async(TensorId tensor, Tensor in, Tensor out, const ScatterOptions& options = {});
  Handle scatter_async(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options = {});
  void scatter(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options = {});
  Handle scatter_async(Tensor in, Tensor out, const ScatterOptions& options);
  void scatter(Tensor in, Tensor out, const ScatterOptions& options);

  /// Starts sending a tensor to rank `to` of the group, or receiving one from rank `from`. Only these two ranks
  /// negotiate: the k-th send under a name matches the k-th receive under it, and several may be in flight.
  ///
  /// tensor  shape and dtype equal on both ranks; read by the sender, overwritten on the receiver
  ///
  /// Lifetime and errors as of all_reduce; also invalid_argument if one of the ranks has joined the group, or if sender
  /// and receiver are the same rank.
  Handle send_async(std::string_view name, Tensor tensor, int to, const PairOptions& options = {});
  Handle recv_async(std::string_view name, Tensor tensor, int from, const PairOptions& options = {});
  void send(std::string_view name, Tensor tensor, int to, const PairOptions& options = {});
  void recv(std::string_view name, Tensor tensor, int from, const PairOptions& options = {});

  /// In an ordered group: sends and receives have a tag instead of a name and are not negotiated. The n-th send of a
  /// pair and tag meets the n-th receive of it; any number may be in flight, in any order. A send is done when its
  /// receive has taken the message: so two ranks that both wait for a send first wait for ever; use batch().
  ///
  /// tensor  bytes, dtype and device kind equal on both ranks: else Error{mismatch} on both (GPUs: run on fakes only)
  ///
  /// Throws Error{invalid_argument} for bad arguments, which the other rank does not learn of. A time-out concerns this
  /// rank only: Error{stalled}, and from then on nothing reads or writes the tensor. What has no partner then is
  /// withdrawn, as if it had never been; a message that was coming goes by; the message of a send may have been
  /// received. GPU tensors that have met are negotiated as those with names are: then a time-out concerns both ranks.
  Handle send_async(Tensor tensor, int to, const PairOptions& options);
  Handle recv_async(Tensor tensor, int from, const PairOptions& options);
  void send(Tensor tensor, int to, const PairOptions& options);
  void recv(Tensor tensor, int from, const PairOptions& options);

  /// Receives from whichever rank of an ordered group sends first, a message of one of these tags (empty: of any, and
  /// `options.tag` counts for nothing). The message may be shorter than the tensor. `received` must live until the
  /// operation is complete. A receive from one rank that was posted later does not overtake it.
  Handle recv_any_async(Tensor tensor, std::span<const int> tags, Received* received, const PairOptions& options);
  Received recv_any(Tensor tensor, std::span<const int> tags, const PairOptions& options);

  /// Submits sends and receives together: all, or, if an argument is bad, none. One handle for each, in their order.
  /// They wait for each other nowhere, whatever their order here and on the other ranks. `options.tag` is ignored.
  std::vector<Handle> batch_async(std::span<const PairOperation> operations, const PairOptions& options);
  /// Waits for all of them; throws the first one's failure, in their order.
  void batch(std::span<const PairOperation> operations, const PairOptions& options);

  /// Several tensors, of one type or several, under one name: they are agreed on, run and fail together. Every rank
  /// passes the same names, types and shapes in the same order.
  ///
  /// Throws Error{in_flight}, and submits nothing, if the name of the whole or of a tensor is in flight, or appears
  /// twice.
  Handle grouped_all_reduce_async(std::string_view name, std::span<const NamedTensor> tensors,
                                  const AllReduceOptions& options = {});
  Handle grouped_broadcast_async(std::string_view name, std::span<const NamedTensor> tensors,
                                 const BroadcastOptions& options = {});
  Handle grouped_reduce_scatter_async(std::string_view name, std::span<const NamedTensor> tensors,
                                      const ReduceScatterOptions& options = {});
  /// The outputs must be given: `options.allocate` and `options.rows` are for single tensors.
  Handle grouped_all_gather_async(std::string_view name, std::span<const NamedTensor> tensors,
                                  const AllGatherOptions& options = {});
  /// Without a name, in a group made with Order::program; the tensors' names are ignored there.
  Handle grouped_all_reduce_async(std::span<const NamedTensor> tensors, const AllReduceOptions& options);
  Handle grouped_broadcast_async(std::span<const NamedTensor> tensors, const BroadcastOptions& options);
  Handle grouped_reduce_scatter_async(std::span<const NamedTensor> tensors, const ReduceScatterOptions& options);
  Handle grouped_all_gather_async(std::span<const NamedTensor> tensors, const AllGatherOptions& options);

  /// Says that this rank cannot do its part of an operation that the others may have submitted under this name: it
  /// fails on every rank with this failure, as after a bad argument. For programs that find out before they can submit
  /// it.
  ///
  /// kind  of the operation, for the text
  Handle refuse_async(OpKind kind, std::string_view name, const Failure& why, const Group& group = {});

  /// Bytes of any length from rank `root` to all ranks, and from all to all: by rank, empty for ranks that have joined.
  /// `timeout_seconds`: as in the options of other operations.
  std::string broadcast_object(std::string_view name, std::string_view bytes, const BroadcastOptions& options = {});
  std::vector<std::string> all_gather_object(std::string_view name, std::string_view bytes, const Group& group = {},
                                             std::optional<double> timeout_seconds = {});
  std::string broadcast_object(std::string_view bytes, const BroadcastOptions& options);
  std::vector<std::string> all_gather_object(std::string_view bytes, const Group& group,
                                             std::optional<double> timeout_seconds = {});

  /// Declares that this rank has no more data. Until every rank of the group has called join(), this rank contributes
  /// the neutral element to the others' operations, and must submit nothing to the group; its earlier operations are
  /// agreed on first. Returns the rank of the group that joined last, the same on every rank.
  ///
  /// While ranks have joined: reductions, rows and barriers are those of the active ranks; `average` divides by their
  /// number, or with `divide_by_group` by the size of the group. Operations that need a joined rank (as root, sender or
  /// receiver) fail with invalid_argument, and so does removing the group. An operation is agreed on twice: a
  /// joined rank makes room for its part in between, and where there is no memory the operation fails on all ranks.
  int join(const Group& group = {});

  /// Completes once every rank of the group has called it. Several may be in flight; they match in order.
  Handle barrier_async(const Group& group = {});
  Handle barrier_async(const BarrierOptions& options);
  void barrier(const Group& group = {});
  void barrier(const BarrierOptions& options);

  /// A barrier with a time-out, which may be 0.
  void monitored_barrier(double seconds, const Group& group = {});

  /// Makes a group of these ranks of the session, listed in any order: in the group they are numbered from 0 in
  /// ascending order (split() chooses another). Called by the members; on any other rank the group has no use. Local:
  /// waits for nobody, and takes nothing but a few hundred bytes until the group's first operation. The k-th group of
  /// some ranks on one member is the k-th group of these ranks on the others. Throws Error{invalid_argument} if the
  /// ranks are not distinct ranks of the session.
  Group new_group(std::span<const int> ranks, const GroupOptions& options = {});

  /// Makes one group for each colour, of the ranks that passed it, and returns this rank's group; a negative colour is
  /// in none. Members are ordered by key, equal keys by session rank. Collective over the session.
  Group split(int color, int key = 0, const GroupOptions& options = {});

  /// Removes a group once its members have nothing in flight in it. Collective over its members; on other ranks it does
  /// nothing, nor to a group that was removed. Throws Error{invalid_argument} on every member if one has something in
  /// flight.
  void remove_group(const Group& group);
  /// The same, without waiting for the other members, for as long as they take.
  Handle remove_group_async(const Group& group);

  /// Ends a group on all its members, while others go on: what is in flight in it, and what is submitted later, fails
  /// there with Error{closed}, also if it is complete on this rank; sends and receives by tag do so on this rank only.
  /// Waits for no member. Then remove it. Throws Error{invalid_argument} for the group of all ranks, which abandon()
  /// ends.
  void abandon_group(const Group& group);

  /// Memory for tensors on a device of this process, zeroed, aligned to 64 bytes at least. Backends need the fewest
  /// copies for tensors there: ranks of a node share it, and device memory may be registered. Local: other ranks need
  /// not do the same. Throws Error{backend}; Error{invalid_argument} for a device that this build does not support.
  Memory allocate(std::size_t bytes, Device device = {});

  /// Makes memory of the program such memory, where it lies and with what it holds, until the session ends: the whole
  /// pages of the range, which must stay allocated until then. While this function runs, and when the session ends, no
  /// thread may write to them; a child of fork() shares them. Local: other ranks need not do the same. Does nothing
  /// where no backend has such memory.
  ///
  /// Throws Error{invalid_argument}, and changes nothing, for memory of a device, a stack or read-only, or adopted
  /// already, without XPMEM also shared, locked, a mapped file or of a reserve; Error{backend} if memory is short.
  void adopt(void* data, std::size_t bytes);

  SessionStats stats() const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kolo

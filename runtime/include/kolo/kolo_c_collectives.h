#pragma once

/// The operations of the C API. Include <kolo/kolo_c.h>.
///
/// Every operation has a form that returns a handle at once (`_async`), and one that blocks. The memory of the tensors,
/// and of `rows`, must stay alive and untouched until kolo_handle_wait() has returned or the handle is destroyed. The
/// structs (tensors, options, scales, splits) are only read during the call.
///
/// session  see kolo_session_create()
/// name     names the tensor across ranks: every rank submits the same names, in any order. Unique among operations in
///          flight (KOLO_IN_FLIGHT). Null with an id of kolo_declare() in `options->tensor`, and in a group with
///          KOLO_ORDER_PROGRAM
/// in, out  contiguous; dtype and device kind, and unless documented otherwise the shape, are equal on every rank
/// options  null, or a struct that is all zero: the defaults. Members may be set by name: `{.op = KOLO_MAX}`
///
/// `timeout_seconds` of the options: when the operation has been in flight for so long on some rank, it fails with
/// KOLO_STALLED on every rank, late ones included; the text names the ranks that are missing. 0: the session's
/// (KOLO_TIMEOUT_SECONDS); negative: none.
///
/// `priority` of the options, the same on every rank: of what is ready, the higher goes first. Within a group what has
/// begun is not overtaken, but on GPUs; tensors of different priorities share no bucket.
///
/// In a group with KOLO_ORDER_PROGRAM operations have no name, and are not negotiated: the n-th call of one member
/// meets the n-th of the others. `options->tensor` is 0. Arguments that cannot work are KOLO_INVALID_ARGUMENT at once,
/// and take no place in the order; a mismatch, a time-out, or an `allocate` that fails ends the group.
///
/// Starting returns KOLO_IN_FLIGHT, KOLO_CLOSED, or KOLO_INVALID_ARGUMENT for mistakes that only C allows, which are
/// not announced to other ranks; waiting returns the status that the ranks agreed on.

#include <kolo/kolo_c_session.h>

#ifdef __cplusplus
extern "C" {
#endif

/// The id of a declared name; 0: none. Valid for the session that declared it.
typedef uint32_t kolo_tensor_id;

/// The id of a name, always the same one; saves looking the name up. Local; ranks may declare names in any order.
int kolo_declare(kolo_session* session, const char* name, kolo_tensor_id* tensor);

/// Allocates an output once its shape is agreed: contiguous memory for `ndim` extents of the input's type, on the
/// input's device, that lives until the operation is complete. If it returns null for a shape with elements, the
/// operation fails on every rank with KOLO_BACKEND. Called on any thread; must not call the session, nor wait for a
/// device (as cudaFree does).
typedef void* (*kolo_allocate)(void* user, int ndim, const int64_t* shape);

// ---- operations that reduce -----------------------------------------------------------------------------------------

typedef struct kolo_all_reduce_options {
  int op;                   ///< a kolo_reduce_op; default: sum
  const kolo_group* group;  ///< null: the world
  const double* prescale;   ///< multiplies every input (in f32 for 16-bit floats); null: 1
  const double* postscale;  ///< multiplies the result; null: 1
  int divide_by_group;      ///< not 0: average divides by the size of the group, also while ranks have joined
  void* ready;              ///< the CUDA stream that wrote `in`; ignored for host tensors
  kolo_tensor_id tensor;    ///< instead of a name
  double timeout_seconds;   ///< see above
  int priority;             ///< see above
} kolo_all_reduce_options;

/// Reduces `in` over all ranks of the group into `out` of each. In-place: `out` is `in`.
int kolo_all_reduce_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_reduce_options* options, kolo_handle** handle);
int kolo_all_reduce(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_reduce_options* options);

typedef struct kolo_reduce_options {
  int op;
  int root;  ///< the rank of the group that gets the result
  const kolo_group* group;
  const double* prescale;
  const double* postscale;
  int divide_by_group;
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_reduce_options;

/// Reduces `in` over all ranks of the group into `out` of the root; in-place as all_reduce. Other ranks ignore `out`,
/// which may be null.
int kolo_reduce_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                      const kolo_reduce_options* options, kolo_handle** handle);
int kolo_reduce(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                const kolo_reduce_options* options);

typedef struct kolo_reduce_scatter_options {
  int op;
  const kolo_group* group;
  const double* prescale;
  const double* postscale;
  int divide_by_group;
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_reduce_scatter_options;

/// Reduces `in`, of one dimension at least, and leaves every rank its rows of the result (see kolo_rows_of_rank()) in
/// `out`, which is as `in` except for the first extent. In-place: `out` is these rows of `in`.
int kolo_reduce_scatter_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                              const kolo_reduce_scatter_options* options, kolo_handle** handle);
int kolo_reduce_scatter(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                        const kolo_reduce_scatter_options* options);

// ---- operations that copy -------------------------------------------------------------------------------------------

typedef struct kolo_broadcast_options {
  int root;  ///< the rank of the group whose values are copied
  const kolo_group* group;
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_broadcast_options;

/// Copies `tensor` of the root over that of every other rank of the group.
int kolo_broadcast_async(kolo_session* session, const char* name, const kolo_tensor* tensor,
                         const kolo_broadcast_options* options, kolo_handle** handle);
int kolo_broadcast(kolo_session* session, const char* name, const kolo_tensor* tensor,
                   const kolo_broadcast_options* options);

typedef struct kolo_all_gather_options {
  const kolo_group* group;
  kolo_allocate allocate;  ///< instead of an output, which is then null
  void* allocate_user;     ///< the first argument of `allocate`
  int64_t* rows;           ///< null, or receives the rows of each rank of the group once the operation was waited for
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_all_gather_options;

/// Gathers a block from every rank of the group into `out` of each, in the order of the ranks.
///
/// in   this rank's block; one dimension at least; shapes are equal on every rank except for the first extent, the rows
/// out  as `in`, with the rows of all ranks; null with `options->allocate`. In-place: `in` is this rank's block of
/// `out`
///
/// A rank that has joined has no rows; `out` may then have more rows than are received.
int kolo_all_gather_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_gather_options* options, kolo_handle** handle);
int kolo_all_gather(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_gather_options* options);

typedef struct kolo_gather_options {
  int root;  ///< the rank of the group that gets all blocks
  const kolo_group* group;
  kolo_allocate allocate;  ///< on the root; as of all_gather
  void* allocate_user;
  int64_t* rows;  ///< on the root; as of all_gather
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_gather_options;

/// As all_gather, except that only the root has an `out`; other ranks ignore theirs, which may be null.
int kolo_gather_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                      const kolo_gather_options* options, kolo_handle** handle);
int kolo_gather(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                const kolo_gather_options* options);

typedef struct kolo_scatter_options {
  int root;  ///< the rank of the group whose rows are scattered
  const kolo_group* group;
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_scatter_options;

/// Scatters the rows of `in` of the root over the ranks of the group (see kolo_rows_of_rank()).
///
/// in   one dimension at least; its `data` is used on the root only, and may be null elsewhere
/// out  as `in`, with this rank's rows. In-place on the root: its rows of `in`
int kolo_scatter_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                       const kolo_scatter_options* options, kolo_handle** handle);
int kolo_scatter(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                 const kolo_scatter_options* options);

typedef struct kolo_all_to_all_options {
  const kolo_group* group;
  const int64_t* splits;   ///< rows of `in` for each rank of the group; null: equal blocks
  kolo_allocate allocate;  ///< as of all_gather
  void* allocate_user;
  int64_t* rows;  ///< as of all_gather: the rows received from each rank
  void* ready;
  kolo_tensor_id tensor;
  double timeout_seconds;
  int priority;
} kolo_all_to_all_options;

/// Exchanges blocks: block j of `in` on rank i becomes block i of `out` on rank j of the group.
///
/// in   one dimension at least; shapes are equal on every rank except for the first extent, the sum of the splits or n
///      equal blocks. A block may have no rows
/// out  as `in`, with the rows received; null with `options->allocate`. May be `in` if all blocks are equal
int kolo_all_to_all_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_to_all_options* options, kolo_handle** handle);
int kolo_all_to_all(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_to_all_options* options);

typedef struct kolo_pair_options {
  const kolo_group* group;  ///< the group that numbers the other rank
  void* ready;
  double timeout_seconds;
  int tag;  ///< in an ordered group, from 0
  int priority;
} kolo_pair_options;

/// Sends a tensor to rank `to` of the group, or receives one from rank `from`, of the same shape and type. Only these
/// two ranks negotiate: the k-th send under a name matches the k-th receive under it, and several may be in flight.
///
/// In an ordered group `name` is null, and nothing is negotiated: the k-th send of a pair and tag matches the k-th
/// receive of it, of as many bytes, of the same type and device kind, and is done when that has taken it. At once
/// KOLO_INVALID_ARGUMENT for a bad argument; a time-out concerns the rank that set it; or both, once GPU tensors met.
int kolo_send_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
                    const kolo_pair_options* options, kolo_handle** handle);
int kolo_recv_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
                    const kolo_pair_options* options, kolo_handle** handle);
int kolo_send(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
              const kolo_pair_options* options);
int kolo_recv(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
              const kolo_pair_options* options);

/// What a receive from any rank has received.
typedef struct kolo_received {
  int source;  ///< rank of the group
  int tag;
  size_t bytes;  ///< the first ones of the tensor
} kolo_received;

/// Receives from whichever rank of an ordered group sends first, a message of one of `count` tags (0: of any). It may
/// be shorter than the tensor. `received` must live until the operation is complete.
int kolo_recv_any_async(kolo_session* session, const kolo_tensor* tensor, const int* tags, size_t count,
                        const kolo_pair_options* options, kolo_received* received, kolo_handle** handle);
int kolo_recv_any(kolo_session* session, const kolo_tensor* tensor, const int* tags, size_t count,
                  const kolo_pair_options* options, kolo_received* received);

/// One of several sends and receives that are submitted together.
typedef struct kolo_pair_operation {
  int sends;  ///< not 0: a send
  const kolo_tensor* tensor;
  int peer;          ///< rank of the group
  int tag;           ///< in an ordered group
  const char* name;  ///< in one that is not; else null
} kolo_pair_operation;

/// Submits sends and receives together: all, or, if an argument is bad, none. `handles` receives one for each. They
/// wait for each other nowhere, whatever their order here and on the other ranks.
int kolo_batch_async(kolo_session* session, const kolo_pair_operation* operations, size_t count,
                     const kolo_pair_options* options, kolo_handle** handles);
/// Returns when all are done, with the first status in their order that is not KOLO_OK.
int kolo_batch(kolo_session* session, const kolo_pair_operation* operations, size_t count,
               const kolo_pair_options* options);

// ---- several tensors at once, and objects ---------------------------------------------------------------------------

/// One of several tensors that are submitted together.
typedef struct kolo_named_tensor {
  const char* name;
  const kolo_tensor* in;
  const kolo_tensor* out;  ///< null for broadcast
} kolo_named_tensor;

/// `count` tensors, of one type or several, under one name: they are agreed on, run and fail together. Every rank
/// passes the same names, types and shapes in the same order. KOLO_IN_FLIGHT, and nothing is submitted, if the name of
/// the whole or of a tensor is in flight, or appears twice. `options->tensor` must be 0; of all_gather, `allocate` and
/// `rows` must be null. In a group with KOLO_ORDER_PROGRAM `name` is null, and the tensors' names are ignored.
int kolo_grouped_all_reduce_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                  size_t count, const kolo_all_reduce_options* options, kolo_handle** handle);
int kolo_grouped_broadcast_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                 size_t count, const kolo_broadcast_options* options, kolo_handle** handle);
int kolo_grouped_reduce_scatter_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                      size_t count, const kolo_reduce_scatter_options* options, kolo_handle** handle);
int kolo_grouped_all_gather_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                  size_t count, const kolo_all_gather_options* options, kolo_handle** handle);

/// Bytes of any length from the root to all ranks. `bytes` and `count` are read on the root only; `bytes` may be null
/// if `count` is 0. `*object` receives `*object_bytes` bytes and a terminating zero, to be freed with kolo_free().
/// `options->tensor` must be 0.
int kolo_broadcast_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                          const kolo_broadcast_options* options, void** object, size_t* object_bytes);

/// Bytes of any length from all ranks to all. `*objects` receives those of all ranks of the group, one after the other,
/// to be freed with kolo_free(); `sizes`, with room for one number for each rank, their lengths (0 for ranks that have
/// joined). `timeout_seconds` as in the options of other operations.
int kolo_all_gather_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                           const kolo_group* group, double timeout_seconds, void** objects, size_t* sizes);

// ---- operations without data ----------------------------------------------------------------------------------------

/// Completes once every rank of the group has called it. Several may be in flight; they match in order.
int kolo_barrier_async(kolo_session* session, const kolo_group* group, kolo_handle** handle);
int kolo_barrier(kolo_session* session, const kolo_group* group);

typedef struct kolo_barrier_options {
  const kolo_group* group;
  double timeout_seconds;
  int priority;
} kolo_barrier_options;

/// With options; null: the defaults.
int kolo_barrier_with_async(kolo_session* session, const kolo_barrier_options* options, kolo_handle** handle);
int kolo_barrier_with(kolo_session* session, const kolo_barrier_options* options);

/// A barrier with a time-out, which may be 0: once a rank has waited for `seconds`, it returns KOLO_STALLED on every
/// rank, late ones included. The text names the missing ranks. The session stays usable.
int kolo_monitored_barrier_async(kolo_session* session, double seconds, const kolo_group* group, kolo_handle** handle);
int kolo_monitored_barrier(kolo_session* session, double seconds, const kolo_group* group);

/// Declares that this rank has no more data. Until every rank of the group has called kolo_join(), this rank
/// contributes the neutral element to the others' operations, and must submit nothing to the group. `*last`, unless
/// null, receives the rank of the group that joined last, the same on every rank. kolo::Session::join() lists what
/// works meanwhile.
int kolo_join(kolo_session* session, const kolo_group* group, int* last);

#ifdef __cplusplus
}
#endif

#pragma once

/// The operations of the C API. Include <kolo/kolo_c.h>.
///
/// Every operation has a form that starts it (`_async`), returns at once and gives a handle to wait for, and one that
/// blocks. The memory of the tensors, and that of `rows`, must stay alive and untouched until kolo_handle_wait()
/// returned or the handle is destroyed. The structs themselves (tensors, options, scales, splits) are only read during
/// the call.
///
/// session  see kolo_session_create()
/// name     names the tensor across ranks: every rank submits the same names, in any order. Unique among operations in
/// flight
///          (KOLO_IN_FLIGHT). Null if `options->tensor` says what kolo_declare() gave for it
/// in, out  contiguous; dtype and device kind equal on every rank, and so is the shape unless the operation says
/// otherwise options  null: the default of every member. A struct that is all zero has the defaults, too: `{0}`, or the
/// members that matter by
///          name, `{.op = KOLO_MAX}`
///
/// Starting returns KOLO_IN_FLIGHT, KOLO_CLOSED, or KOLO_INVALID_ARGUMENT for what the other ranks are not told;
/// waiting returns what the ranks agreed on.

#include <kolo/kolo_c_session.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A declared name; 0 is none. Valid for the session that gave it.
typedef uint32_t kolo_tensor_id;

/// Gives a name its id; asking again gives the same. Local; the same order is not required anywhere. Saves looking the
/// name up.
int kolo_declare(kolo_session* session, const char* name, kolo_tensor_id* tensor);

/// Makes an output once its shape is agreed: contiguous memory for `ndim` extents of the input's type, on the input's
/// device, that lives until the operation is complete. Null says that there is none: then the operation fails on every
/// rank with KOLO_BACKEND; for no elements null is fine. Called on any thread; must not call the session.
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
} kolo_all_reduce_options;

/// Reduces `in` over all ranks of the group into `out` of each. In place: `out` is `in`.
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
} kolo_reduce_options;

/// Reduces `in` over all ranks of the group into `out` of the root; in place as all_reduce. Elsewhere `out` is ignored,
/// and may be null.
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
} kolo_reduce_scatter_options;

/// Reduces `in`, of one dimension at least, and leaves every rank its rows of the result (see kolo_rows_of_rank()) in
/// `out`, which is as `in` but for the first extent. In place: `out` is these rows of `in`.
int kolo_reduce_scatter_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                              const kolo_reduce_scatter_options* options, kolo_handle** handle);
int kolo_reduce_scatter(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                        const kolo_reduce_scatter_options* options);

// ---- operations that copy -------------------------------------------------------------------------------------------

typedef struct kolo_broadcast_options {
  int root;  ///< the rank of the group whose values everybody gets
  const kolo_group* group;
  void* ready;
  kolo_tensor_id tensor;
} kolo_broadcast_options;

/// Copies `tensor` of the root over that of every other rank of the group.
int kolo_broadcast_async(kolo_session* session, const char* name, const kolo_tensor* tensor,
                         const kolo_broadcast_options* options, kolo_handle** handle);
int kolo_broadcast(kolo_session* session, const char* name, const kolo_tensor* tensor,
                   const kolo_broadcast_options* options);

typedef struct kolo_all_gather_options {
  const kolo_group* group;
  kolo_allocate allocate;  ///< instead of an output, which is null then
  void* allocate_user;     ///< what `allocate` gets first
  int64_t*
      rows;  ///< null, or room for one number for each rank of the group: its rows, once the operation was waited for
  void* ready;
  kolo_tensor_id tensor;
} kolo_all_gather_options;

/// Gathers a block from every rank of the group into `out` of each, in the order of the ranks.
///
/// in   this rank's block; one dimension at least; shapes are equal on every rank but for the first extent, the rows
/// out  as `in`, with the rows of all ranks; null with `options->allocate`. In place: `in` is this rank's block of
/// `out`
///
/// A rank that has joined has no rows; `out` may then be longer than what comes.
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
} kolo_gather_options;

/// As all_gather, but that only the root has an `out`; elsewhere it is ignored, and may be null.
int kolo_gather_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                      const kolo_gather_options* options, kolo_handle** handle);
int kolo_gather(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                const kolo_gather_options* options);

typedef struct kolo_scatter_options {
  int root;  ///< the rank of the group whose rows are dealt out
  const kolo_group* group;
  void* ready;
  kolo_tensor_id tensor;
} kolo_scatter_options;

/// Deals out the rows of `in` of the root (see kolo_rows_of_rank()) to the ranks of the group.
///
/// in   one dimension at least; its `data` is used on the root only, and may be null elsewhere
/// out  as `in`, with this rank's rows. In place on the root: its rows of `in`
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
} kolo_all_to_all_options;

/// Sends block j of `in` to rank j of the group, whose block i of `out` it becomes if this is rank i.
///
/// in   one dimension at least; shapes are equal on every rank but for the first extent, which is cut into the splits,
/// or into equal
///      blocks. A block may have no rows
/// out  as `in`, with the rows that come; null with `options->allocate`. In place if all blocks are equal
int kolo_all_to_all_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_to_all_options* options, kolo_handle** handle);
int kolo_all_to_all(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_to_all_options* options);

typedef struct kolo_pair_options {
  const kolo_group* group;  ///< in which the other rank is counted
  void* ready;
} kolo_pair_options;

/// Sends a tensor to rank `to` of the group, or receives one from rank `from`, of the same shape and type. Only these
/// two ranks negotiate: the k-th send under a name matches the k-th receive under it, and several may be in flight.
int kolo_send_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
                    const kolo_pair_options* options, kolo_handle** handle);
int kolo_recv_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
                    const kolo_pair_options* options, kolo_handle** handle);
int kolo_send(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
              const kolo_pair_options* options);
int kolo_recv(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
              const kolo_pair_options* options);

// ---- several tensors at once, and objects ---------------------------------------------------------------------------

/// One of several tensors that are submitted together.
typedef struct kolo_named_tensor {
  const char* name;
  const kolo_tensor* in;
  const kolo_tensor* out;  ///< null for broadcast
} kolo_named_tensor;

/// `count` tensors, maybe of several types, under one name: they are agreed on together, run together, and fail
/// together. Every rank passes the same names, types and shapes in the same order. KOLO_IN_FLIGHT, and nothing is in
/// flight then, if the name of the whole or of one of them is taken, or appears twice. `options->tensor` must be 0; of
/// all_gather, `allocate` and `rows` must be null.
int kolo_grouped_all_reduce_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                  size_t count, const kolo_all_reduce_options* options, kolo_handle** handle);
int kolo_grouped_broadcast_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                 size_t count, const kolo_broadcast_options* options, kolo_handle** handle);
int kolo_grouped_reduce_scatter_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                      size_t count, const kolo_reduce_scatter_options* options, kolo_handle** handle);
int kolo_grouped_all_gather_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                  size_t count, const kolo_all_gather_options* options, kolo_handle** handle);

/// Bytes of any number from the root to all. `bytes` and `count` matter on the root only; `bytes` may be null if there
/// are none.
/// `*object` gets `*object_bytes` bytes and, not counted, a zero behind them; to be freed with kolo_free().
/// `options->tensor` must be 0.
int kolo_broadcast_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                          const kolo_broadcast_options* options, void** object, size_t* object_bytes);

/// Bytes of any number from all to all. `*objects` gets those of all ranks of the group, one after the other, to be
/// freed with kolo_free(), and `sizes`, with room for one number for each rank, how many each has (none if it has
/// joined).
int kolo_all_gather_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                           const kolo_group* group, void** objects, size_t* sizes);

// ---- operations without data ----------------------------------------------------------------------------------------

/// Completes on no rank before every rank of the group has called it. Several may be in flight; they match in order.
int kolo_barrier_async(kolo_session* session, const kolo_group* group, kolo_handle** handle);
int kolo_barrier(kolo_session* session, const kolo_group* group);

/// A barrier that gives up after `seconds` on the first rank that waited so long, and then returns KOLO_STALLED on
/// every rank, also on those that come later: the text names who did not come. The session goes on.
int kolo_monitored_barrier(kolo_session* session, double seconds, const kolo_group* group);

/// This rank has no more data: until every rank of the group has called kolo_join(), it takes part in what the others
/// submit with values that do not count. It must submit nothing to the group meanwhile. `*last`, unless null, is the
/// rank of the group that joined last, on every rank the same. What works while ranks have joined is written at
/// kolo::Session::join().
int kolo_join(kolo_session* session, const kolo_group* group, int* last);

#ifdef __cplusplus
}
#endif

#pragma once

/// Statuses, types, tensors and handles of the C API. Include <kolo/kolo_c.h>.

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): C has no other
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#ifdef __cplusplus
extern "C" {
#endif

/// The status of a call. The values are stable: new ones are appended.
///
/// Mistakes that only C allows (a null pointer, a number that is no enumerator, a number of dimensions out of range)
/// return KOLO_INVALID_ARGUMENT at once, and nothing is submitted. All other errors of an operation are agreed on by
/// its ranks: kolo_handle_wait() or the blocking form returns them on each rank.
typedef enum kolo_status {
  KOLO_OK = 0,
  KOLO_INVALID_ARGUMENT = 1,  ///< one rank passed an invalid argument; every rank gets this error for that tensor
  KOLO_MISMATCH = 2,          ///< ranks submitted the same name with different descriptions
  KOLO_IN_FLIGHT = 3,         ///< the name is already in flight on this rank; nothing was announced
  KOLO_CLOSED = 4,            ///< the session was closed, here or on a rank that takes part
  KOLO_STALLED = 5,           ///< a deadline passed while ranks were missing
  KOLO_ABORTED = 6,  ///< a rank left without finishing, is gone, or its runtime failed: groups that have it are over
  KOLO_BACKEND = 7   ///< MPI, CUDA, NCCL or the operating system reported an error, or memory ran out
} kolo_status;

/// "ok", "mismatch", "closed", …; "unknown status" for other numbers. Never null, never freed.
const char* kolo_status_name(int status);

/// The text of the last error of a call on this thread: *problem (why) what to try*. "" before the first. Never null;
/// valid until the thread's next call.
const char* kolo_last_error(void);

/// Element types.
typedef enum kolo_dtype {
  KOLO_F64 = 0,
  KOLO_F32 = 1,
  KOLO_F16 = 2,   ///< IEEE 754 binary16, as uint16_t
  KOLO_BF16 = 3,  ///< the upper half of a float, as uint16_t
  KOLO_I64 = 4,
  KOLO_I32 = 5,
  KOLO_I16 = 6,
  KOLO_I8 = 7,
  KOLO_U64 = 8,
  KOLO_U32 = 9,
  KOLO_U16 = 10,
  KOLO_U8 = 11,
  KOLO_BOOL = 12  ///< one byte, 0 or 1
} kolo_dtype;

/// Bytes of one element of a kolo_dtype.
int kolo_dtype_size(int dtype, size_t* bytes);

/// How operations that reduce combine the ranks' values. See kolo::ReduceOp (<kolo/op.h>) for their meanings and types.
typedef enum kolo_reduce_op {
  KOLO_SUM = 0,
  KOLO_AVERAGE = 1,  ///< of the ranks that took part; of integers truncated toward zero
  KOLO_MIN = 2,
  KOLO_MAX = 3,
  KOLO_PRODUCT = 4,
  KOLO_BIT_AND = 5,
  KOLO_BIT_OR = 6,
  KOLO_BIT_XOR = 7,
  KOLO_LOGICAL_AND = 8,
  KOLO_LOGICAL_OR = 9,
  KOLO_ADASUM = 10  ///< of floats, by all_reduce only
} kolo_reduce_op;

/// Where memory lives.
typedef enum kolo_device_kind { KOLO_CPU = 0, KOLO_CUDA = 1 } kolo_device_kind;

/// The largest number of dimensions of a tensor.
enum { KOLO_MAX_DIMS = 8 };

/// A view of contiguous, row-major elements; nothing is owned.
///
///     float grad[1000];
///     kolo_tensor tensor = {.data = grad, .ndim = 1, .shape = {1000}, .dtype = KOLO_F32};
///
/// Functions read this struct only during the call; `data` must live until the operation is complete.
typedef struct kolo_tensor {
  void* data;                    ///< the first element; may be null only if there is none
  int ndim;                      ///< from 0 (one element) to KOLO_MAX_DIMS
  int64_t shape[KOLO_MAX_DIMS];  ///< `ndim` extents, in elements
  int dtype;                     ///< a kolo_dtype
  int device_kind;               ///< a kolo_device_kind
  int device_index;              ///< a CUDA ordinal; 0 for the host
} kolo_tensor;

/// A view of the memory of a DLPack tensor: `dl_tensor` is the `DLTensor*` of any dlpack.h of version 0.2 or later.
/// Nothing is copied or owned: the caller calls the managed tensor's deleter after the last use of the view.
///
/// Takes numbers of the types above (one lane), in host, pinned, CUDA or CUDA managed memory, aligned to one element,
/// row-major without gaps, with at most KOLO_MAX_DIMS dimensions. KOLO_INVALID_ARGUMENT for all else.
int kolo_tensor_from_dlpack(const void* dl_tensor, kolo_tensor* tensor);

/// Describes `tensor` for another library: `*managed` is a `DLManagedTensorVersioned*` (DLPack 1.x), owned by the
/// caller until it passes it on. Its last owner calls the deleter, which calls `release(user)`, on any thread.
/// `release` may be null.
///
/// If this fails, `release` has been called already, and `*managed` is null.
int kolo_tensor_to_dlpack(const kolo_tensor* tensor, void (*release)(void* user), void* user, void** managed);

/// The rows [*begin, *end) of rank `rank` when reduce_scatter or scatter divides `rows` rows among `ranks` ranks:
/// contiguous, in rank order, and one more on each of the first `rows % ranks` ranks.
int kolo_rows_of_rank(int64_t rows, int ranks, int rank, int64_t* begin, int64_t* end);

/// One operation in flight. Every handle must be destroyed before its session, also after a wait. Several threads may
/// wait for one handle at once, as for kolo::Handle; use it otherwise from one thread at a time.
typedef struct kolo_handle kolo_handle;

/// Returns when the operation is complete on this rank, with its status, which is the same on every rank of the group:
/// KOLO_OK, KOLO_INVALID_ARGUMENT, KOLO_MISMATCH, KOLO_CLOSED, KOLO_STALLED, KOLO_ABORTED or KOLO_BACKEND. Waiting once
/// more returns KOLO_OK at once.
int kolo_handle_wait(kolo_handle* handle);

/// Makes work that is enqueued on `stream` from now on wait for the operation; does not wait for the GPU. `stream`: a
/// cudaStream_t of the tensors' GPU; null: the default stream. The name is free again afterwards; the tensors' memory
/// must stay alive until the stream has passed this point. A failure on the GPU after that is returned by the next wait
/// on any operation of the session. With host tensors: kolo_handle_wait().
int kolo_handle_wait_on_stream(kolo_handle* handle, void* stream);

/// `*empty` becomes 1 if the handle was waited for, 0 if not.
int kolo_handle_is_empty(const kolo_handle* handle, int* empty);

/// `*done` becomes 1 if kolo_handle_wait() would return without waiting, 0 if not.
int kolo_handle_poll(kolo_handle* handle, int* done);

/// Waits no longer than `seconds` from now: `*done` becomes 1 if the operation is done, whose status is returned then
/// as by kolo_handle_wait(); otherwise 0, and it goes on.
int kolo_handle_wait_until(kolo_handle* handle, double seconds, int* done);

/// `*index` becomes that of a handle whose operation is done, or that was waited for; its kolo_handle_wait() says how
/// it went. KOLO_INVALID_ARGUMENT if `count` is 0.
int kolo_handle_wait_any(kolo_handle* const* handles, size_t count, size_t* index);
/// Waits for all, and returns the first status in their order that is not KOLO_OK.
int kolo_handle_wait_all(kolo_handle* const* handles, size_t count);

/// Calls `call` once, when the tensors are final, in a thread of the session that runs nothing else, one call after the
/// other: it may submit, wait, and close the session, but not wait for what another such call has to do, nor destroy
/// the session. `message` is empty if it went well, and valid during the call. KOLO_ABORTED also where destroying the
/// handle has withdrawn the operation. kolo_session_close() and kolo_session_destroy() return when all calls have
/// returned. In a child of fork() there are none. KOLO_INVALID_ARGUMENT if the handle was waited for already.
int kolo_handle_on_done(kolo_handle* handle, void (*call)(kolo_status status, const char* message, void* context),
                        void* context);

/// The operation goes on without its handle, which is freed. Calls `release(user)`, unless null, once it is done: in
/// the session's thread for such calls, or in this call if it was done already. Until then the tensors' memory must
/// stay alive. How it fails is returned by the next wait on any operation of the session. If this fails, the handle is
/// still there and `release` is not called.
int kolo_handle_detach(kolo_handle* handle, void (*release)(void* user), void* user);

/// Frees the handle. An operation that the ranks have not agreed on yet is withdrawn, as if it had never been
/// submitted; otherwise this blocks until the operation is complete, or has failed, and how it failed is lost. In both
/// cases the tensors' memory may be freed afterwards. Null is allowed.
int kolo_handle_destroy(kolo_handle* handle);

/// Frees the result of kolo_broadcast_object(), kolo_all_gather_object() or kolo_store_get(). Null is allowed.
int kolo_free(void* bytes);

#ifdef __cplusplus
}
#endif

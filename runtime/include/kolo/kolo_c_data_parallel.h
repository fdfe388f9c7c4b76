#pragma once

/// Data-parallel training in C: <kolo/data_parallel.h> has the contracts. Include <kolo/kolo_c.h>.

#include <kolo/kolo_c_base.h>
#include <kolo/kolo_c_session.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A parameter, see kolo::TrainedTensor. Its memory belongs to the program.
typedef struct kolo_trained_tensor {
  const char* name;      ///< copied
  kolo_tensor value;     ///< read during the call that is passed it, like `gradient`
  kolo_tensor gradient;  ///< `data` null: none, the value is only broadcast
} kolo_trained_tensor;

/// Allocates `bytes` on a device, aligned to 64 bytes, that live until kolo_data_parallel_destroy() has returned, such
/// as memory of kolo_memory_allocate(). Called during kolo_data_parallel_create(), on its thread, once for each device
/// of gradients; if it returns null that fails with KOLO_BACKEND.
typedef void* (*kolo_allocate_wire)(void* user, size_t bytes, int device_kind, int device_index);

/// Fields that are not set have the defaults, see kolo::DataParallelOptions.
typedef struct kolo_data_parallel_options {
  const kolo_group* group;      ///< null: the world
  const char* prefix;           ///< of all names; null: none
  int average;                  ///< 1: gradients become averages; 0: sums
  int wire;                     ///< KOLO_F16 or KOLO_BF16: the type in which gradients travel; 0: their own
  int counts;                   ///< 1: see kolo_data_parallel_count()
  const size_t* order;          ///< in which gradients become ready, one for each tensor; null: from last to first
  size_t shards_from;           ///< elements from which ZeRO-1 splits a gradient; 0: none is split
  double timeout_seconds;       ///< of each operation; 0: the session's
  int adopts;                   ///< 1: the session adopts what it can of the tensors' memory, which outlives it
  kolo_allocate_wire allocate;  ///< for the gradients as they travel, with `wire`; null: memory of the session
  void* allocate_user;          ///< its first argument
} kolo_data_parallel_options;

/// One rank's part in the training of some tensors. Destroy it before its session. Use it from one thread at a time.
typedef struct kolo_data_parallel kolo_data_parallel;

/// `options` may be null.
int kolo_data_parallel_create(kolo_session* session, const kolo_trained_tensor* tensors, size_t count,
                              const kolo_data_parallel_options* options, kolo_data_parallel** parallel);
/// Waits for what is in flight. Null is allowed.
int kolo_data_parallel_destroy(kolo_data_parallel* parallel);

/// Copies all values of rank `root` over those of the others. `stream`: the CUDA stream that wrote them, or null; so
/// below.
int kolo_data_parallel_broadcast(kolo_data_parallel* parallel, int root, void* stream);

/// While `skip` is 1, kolo_data_parallel_ready() does nothing.
int kolo_data_parallel_skip_sync(kolo_data_parallel* parallel, int skip);
/// What this rank's share of the step counts, and what all are expected to (0: not known).
int kolo_data_parallel_count(kolo_data_parallel* parallel, double mine, double expected);

/// Gradient `i` is final on this rank: it begins to travel.
int kolo_data_parallel_ready(kolo_data_parallel* parallel, size_t i, void* stream);
/// All that are not ready yet, as they are.
int kolo_data_parallel_ready_rest(kolo_data_parallel* parallel, void* stream);
/// Returns when gradient `i`, or this rank's shard of it, is reduced.
int kolo_data_parallel_wait(kolo_data_parallel* parallel, size_t i);
int kolo_data_parallel_wait_on_stream(kolo_data_parallel* parallel, size_t i, void* stream);
/// This step's gradients in the order in which they became ready: `*tensors` has `*count` numbers, and is valid until
/// the next call of kolo_data_parallel_ready(), _ready_rest(), _finish() or _destroy(); null if there are none. Waits
/// for nothing.
int kolo_data_parallel_submitted(const kolo_data_parallel* parallel, const size_t** tensors, size_t* count);
/// Ends the step.
int kolo_data_parallel_finish(kolo_data_parallel* parallel);
int kolo_data_parallel_finish_on_stream(kolo_data_parallel* parallel, void* stream);

/// What all ranks have counted, and the factor that makes the mean of a gradient that has arrived. Both wait.
int kolo_data_parallel_counted(kolo_data_parallel* parallel, double* counted);
int kolo_data_parallel_gradient_scale(kolo_data_parallel* parallel, double* scale);

/// The elements of tensor `i` that this rank updates; `*split`: whether other ranks update the rest.
int kolo_data_parallel_shard(const kolo_data_parallel* parallel, size_t i, size_t* first, size_t* count, int* split);
/// This rank's shard of value `i` is final: begins to gather the others'.
int kolo_data_parallel_updated(kolo_data_parallel* parallel, size_t i, void* stream);
/// Returns when value `i` is complete on this rank.
int kolo_data_parallel_use(kolo_data_parallel* parallel, size_t i);
int kolo_data_parallel_use_on_stream(kolo_data_parallel* parallel, size_t i, void* stream);
int kolo_data_parallel_use_all(kolo_data_parallel* parallel);

/// Seconds that this rank has spent waiting in these functions.
int kolo_data_parallel_wait_seconds(const kolo_data_parallel* parallel, double* seconds);

#ifdef __cplusplus
}
#endif

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <kolo/dtype.h>
#include <kolo/op.h>

namespace kolo {

// NCCL without nccl.h, so that builds without CUDA compile and test the code that uses it. nccl.cc checks that
// the values are NCCL's own.

struct NcclCommunicator;  ///< opaque
using NcclComm = NcclCommunicator*;

struct NcclId {
  char bytes[128];
};

enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};

enum class NcclType : int { i8 = 0, u8 = 1, i32 = 2, u32 = 3, i64 = 4, u64 = 5, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };

/// Ops from 5 on are made by create_pre_mul_sum.
enum class NcclOp : int { sum = 0, product = 1, max = 2, min = 3, average = 4 };

/// The functions of libnccl.so.2 that kolo uses. Communicators block or do not. Of those that do not, what returns
/// in_progress goes on in the background, in a thread of NCCL's for each launch, and until async_error() says something
/// else nothing but that and abort() may be called on the communicator. What blocks may wait for other ranks: init,
/// finalize, destroy, and a launch of a kind for which it has not connected the ranks yet.
struct NcclTable {
  int version = 0;  ///< 22809 is 2.28.9

  NcclResult (*get_unique_id)(NcclId* id) = nullptr;
  /// ncclCommInitRankConfig with a configuration that says whether it blocks, and that kernels have `max_ctas` thread
  /// blocks at most (0: as many as NCCL likes).
  NcclResult (*init)(NcclComm* comm, int ranks, const NcclId& id, int rank, int max_ctas, bool blocking) = nullptr;
  NcclResult (*finalize)(NcclComm comm) = nullptr;
  NcclResult (*destroy)(NcclComm comm) = nullptr;
  NcclResult (*abort)(NcclComm comm) = nullptr;
  NcclResult (*async_error)(NcclComm comm, NcclResult* state) = nullptr;
  const char* (*error_string)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm comm) = nullptr;

  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;

  NcclResult (*all_reduce)(const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                           void* stream) = nullptr;
  NcclResult (*reduce)(const void* in, void* out, std::size_t count, NcclType type, NcclOp op, int root, NcclComm comm,
                       void* stream) = nullptr;
  NcclResult (*broadcast)(const void* in, void* out, std::size_t count, NcclType type, int root, NcclComm comm,
                          void* stream) = nullptr;
  NcclResult (*all_gather)(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                           void* stream) = nullptr;
  NcclResult (*reduce_scatter)(const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                               void* stream) = nullptr;
  NcclResult (*send)(const void* in, std::size_t count, NcclType type, int peer, NcclComm comm, void* stream) = nullptr;
  NcclResult (*receive)(void* out, std::size_t count, NcclType type, int peer, NcclComm comm, void* stream) = nullptr;

  /// `scalar` is one element of `type` in host memory, read at once.
  NcclResult (*create_pre_mul_sum)(NcclOp* op, const void* scalar, NcclType type, NcclComm comm) = nullptr;
  NcclResult (*destroy_op)(NcclOp op, NcclComm comm) = nullptr;

  NcclResult (*allocate)(void** data, std::size_t bytes) = nullptr;
  NcclResult (*release)(void* data) = nullptr;
  NcclResult (*register_memory)(NcclComm comm, void* data, std::size_t bytes,
                                void** handle) = nullptr;                  ///< ncclCommRegister
  NcclResult (*deregister_memory)(NcclComm comm, void* handle) = nullptr;  ///< ncclCommDeregister
};

/// NCCL of this machine, loaded when it is asked for the first time; null if there is none, or it is older than 2.19:
/// `why` is then given a line that says so. Defined by nccl.cc or no_nccl.cc, exactly one of which is linked.
const NcclTable* nccl_table(std::string* why = nullptr);

/// "2.28.9".
std::string nccl_version_text(int version);

inline constexpr int oldest_nccl = 21900;

}  // namespace kolo

// The only file that knows nccl.h, and its versions. The library itself is opened when it is needed: a program starts
// without it.

#include <dlfcn.h>
#include <nccl.h>

#include <fmt/format.h>

#include <cstddef>

#include <kolo/detail/unique.h>

#include "ops/nccl/table.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0), "kolo needs nccl.h of NCCL 2.19 or newer");

namespace kolo {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId) && alignof(NcclId) == alignof(ncclUniqueId));
static_assert(sizeof(NcclResult) == sizeof(ncclResult_t) && sizeof(NcclType) == sizeof(ncclDataType_t) &&
              sizeof(NcclOp) == sizeof(ncclRedOp_t));
static_assert(static_cast<int>(NcclResult::success) == ncclSuccess &&
              static_cast<int>(NcclResult::unhandled_cuda_error) == ncclUnhandledCudaError);
static_assert(static_cast<int>(NcclResult::system_error) == ncclSystemError &&
              static_cast<int>(NcclResult::internal_error) == ncclInternalError);
static_assert(static_cast<int>(NcclResult::invalid_argument) == ncclInvalidArgument &&
              static_cast<int>(NcclResult::invalid_usage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclResult::remote_error) == ncclRemoteError &&
              static_cast<int>(NcclResult::in_progress) == ncclInProgress);
static_assert(static_cast<int>(NcclType::i8) == ncclInt8 && static_cast<int>(NcclType::u8) == ncclUint8);
static_assert(static_cast<int>(NcclType::i32) == ncclInt32 && static_cast<int>(NcclType::u32) == ncclUint32);
static_assert(static_cast<int>(NcclType::i64) == ncclInt64 && static_cast<int>(NcclType::u64) == ncclUint64);
static_assert(static_cast<int>(NcclType::f16) == ncclFloat16 && static_cast<int>(NcclType::bf16) == ncclBfloat16);
static_assert(static_cast<int>(NcclType::f32) == ncclFloat32 && static_cast<int>(NcclType::f64) == ncclFloat64);
static_assert(static_cast<int>(NcclOp::sum) == ncclSum && static_cast<int>(NcclOp::product) == ncclProd &&
              static_cast<int>(NcclOp::average) == ncclAvg);
static_assert(static_cast<int>(NcclOp::min) == ncclMin && static_cast<int>(NcclOp::max) == ncclMax);

/// Functions that take structs of NCCL, which only this file knows.
struct Loaded {
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) create_pre_mul_sum = nullptr;
};
Loaded& loaded() {
  static Loaded functions;
  return functions;
}

NcclResult init(NcclComm* comm, int ranks, const NcclId& id, int rank, int max_ctas, bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  ncclUniqueId raw;
  __builtin_memcpy(&raw, &id, sizeof(raw));
  return static_cast<NcclResult>(loaded().init(reinterpret_cast<ncclComm_t*>(comm), ranks, raw, rank, &config));
}
NcclResult create_pre_mul_sum(NcclOp* op, const void* scalar, NcclType type, NcclComm comm) {
  return static_cast<NcclResult>(loaded().create_pre_mul_sum(
      reinterpret_cast<ncclRedOp_t*>(op), const_cast<void*>(scalar), static_cast<ncclDataType_t>(type),
      ncclScalarHostImmediate, reinterpret_cast<ncclComm_t>(comm)));
}

/// Finds functions by name. Enums of one size, and pointers to opaque types, are passed in the same way: so a function
/// of NCCL is called through the table's type.
class Library final {
 public:
  Library() = default;
  explicit Library(void* handle) : handle_(handle) {}
  explicit operator bool() const { return static_cast<bool>(handle_); }

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_.get(), name));
    if (!function && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  struct Traits {
    using Raw = void*;
    static Raw null() noexcept { return nullptr; }
    static void destroy(Raw handle) noexcept { (void)dlclose(handle); }
  };
  Unique<Traits> handle_;
  std::string missing_;
};

struct Found {
  Library library;
  NcclTable table;
  bool usable = false;
  std::string why;
};

Found load() {
  Found found;
  Library& library = found.library = Library(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    const char* const error = dlerror();
    found.why = fmt::format("NCCL cannot be loaded ({}); install libnccl.so.2 or name its folder in LD_LIBRARY_PATH",
                            error ? error : "libnccl.so.2");
    return found;
  }
  NcclTable& table = found.table;
  decltype(&ncclGetVersion) get_version = nullptr;
  library.find(get_version, "ncclGetVersion");
  if (!get_version || get_version(&table.version) != ncclSuccess || table.version < oldest_nccl) {
    found.why = fmt::format("NCCL {} is too old (2.19 is the oldest that works); install a newer libnccl.so.2",
                            nccl_version_text(table.version));
    return found;
  }
  library.find(loaded().init, "ncclCommInitRankConfig");
  library.find(loaded().create_pre_mul_sum, "ncclRedOpCreatePreMulSum");
  table.init = init;
  table.create_pre_mul_sum = create_pre_mul_sum;
  library.find(table.get_unique_id, "ncclGetUniqueId");
  library.find(table.finalize, "ncclCommFinalize");
  library.find(table.destroy, "ncclCommDestroy");
  library.find(table.abort, "ncclCommAbort");
  library.find(table.async_error, "ncclCommGetAsyncError");
  library.find(table.error_string, "ncclGetErrorString");
  library.find(table.last_error, "ncclGetLastError");
  library.find(table.group_start, "ncclGroupStart");
  library.find(table.group_end, "ncclGroupEnd");
  library.find(table.all_reduce, "ncclAllReduce");
  library.find(table.reduce, "ncclReduce");
  library.find(table.broadcast, "ncclBroadcast");
  library.find(table.all_gather, "ncclAllGather");
  library.find(table.reduce_scatter, "ncclReduceScatter");
  library.find(table.send, "ncclSend");
  library.find(table.receive, "ncclRecv");
  library.find(table.destroy_op, "ncclRedOpDestroy");
  library.find(table.allocate, "ncclMemAlloc");
  library.find(table.release, "ncclMemFree");
  library.find(table.register_memory, "ncclCommRegister");
  library.find(table.deregister_memory, "ncclCommDeregister");
  found.usable = library.missing().empty();
  if (!found.usable) {
    found.why = fmt::format("NCCL {} lacks {} (is it NVIDIA's?); install another libnccl.so.2",
                            nccl_version_text(table.version), library.missing());
  }
  return found;
}

}  // namespace

const NcclTable* nccl_table(std::string* why) {
  static const Found* const found = new Found(load());  // never destroyed: a static session may use it after all else
  if (why) *why = found->why;
  return found->usable ? &found->table : nullptr;
}

}  // namespace kolo

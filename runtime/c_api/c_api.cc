#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "runtime/c_api/parts.h"

// Statuses, tensors and handles of the C API.

namespace kolo::c_api {
namespace {

static_assert(KOLO_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument) + 1);
static_assert(KOLO_BACKEND == static_cast<int>(ErrorCode::backend) + 1);
static_assert(KOLO_F64 == static_cast<int>(DType::f64) && KOLO_BF16 == static_cast<int>(DType::bf16) &&
              KOLO_I8 == static_cast<int>(DType::i8) && KOLO_BOOL == static_cast<int>(DType::boolean) &&
              KOLO_BOOL + 1 == dtype_count);
static_assert(KOLO_SUM == static_cast<int>(ReduceOp::sum) && KOLO_PRODUCT == static_cast<int>(ReduceOp::product) &&
              KOLO_BIT_XOR == static_cast<int>(ReduceOp::bit_xor) &&
              KOLO_ADASUM == static_cast<int>(ReduceOp::adasum) && KOLO_ADASUM + 1 == reduce_op_count);
static_assert(KOLO_CPU == static_cast<int>(DeviceKind::cpu) && KOLO_CUDA == static_cast<int>(DeviceKind::cuda));
static_assert(KOLO_ORDER_NAMES == static_cast<int>(Order::names) &&
              KOLO_ORDER_PROGRAM == static_cast<int>(Order::program));
static_assert(KOLO_MAX_DIMS == Shape::max_dims);

thread_local std::string last_text;
thread_local const char* last_error = "";

}  // namespace

int fail(kolo_status status, const char* function, std::string_view text) noexcept {
  try {
    last_text = function ? fmt::format("{}: {}", function, text) : std::string(text);
    last_error = last_text.c_str();
  } catch (const std::exception&) {
    last_error = "out of memory, also for the text of an error";
  }
  return status;
}

int fail(const Error& error) noexcept {
  return fail(static_cast<kolo_status>(static_cast<int>(error.code()) + 1), nullptr, error.what());
}

Tensor tensor_of(const kolo_tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > KOLO_MAX_DIMS) {
    throw std::invalid_argument(
        fmt::format("the tensor has {} dimensions (0 to {} work); reshape it", tensor.ndim, KOLO_MAX_DIMS));
  }
  const Shape shape(std::span(tensor.shape, static_cast<std::size_t>(tensor.ndim)));
  return {tensor.data, shape, dtype_of(tensor.dtype), device_of(tensor.device_kind, tensor.device_index)};
}

kolo_tensor to_c(const Tensor& tensor) {
  kolo_tensor described{};
  described.data = tensor.data;
  described.ndim = tensor.shape.dims();
  std::ranges::copy(tensor.shape.extents(), described.shape);
  described.dtype = static_cast<int>(tensor.dtype);
  described.device_kind = static_cast<int>(tensor.device.kind);
  described.device_index = tensor.device.index;
  return described;
}

void* copy_of(std::string_view bytes) {
  auto* copy = static_cast<char*>(std::malloc(bytes.size() + 1));
  if (!copy) throw std::bad_alloc();
  if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
  copy[bytes.size()] = 0;
  return copy;
}

std::string_view bytes_of(const void* bytes, size_t count, std::string_view name) {
  if (count == 0) return {};
  return {&at(static_cast<const char*>(bytes), name), count};
}

void give_rows(kolo_handle& handle) {
  const std::lock_guard lock(handle.giving);
  if (handle.rows_out) std::ranges::copy(handle.rows, handle.rows_out);
  handle.rows_out = nullptr;
}

}  // namespace kolo::c_api

using kolo::c_api::at;
using kolo::c_api::guarded;

const char* kolo_status_name(int status) {
  switch (status) {
    case KOLO_OK: return "ok";
    case KOLO_INVALID_ARGUMENT: return "invalid_argument";
    case KOLO_MISMATCH: return "mismatch";
    case KOLO_IN_FLIGHT: return "in_flight";
    case KOLO_CLOSED: return "closed";
    case KOLO_STALLED: return "stalled";
    case KOLO_ABORTED: return "aborted";
    case KOLO_BACKEND: return "backend";
  }
  return "unknown status";
}

const char* kolo_last_error() {
  return kolo::c_api::last_error;
}

int kolo_dtype_size(int dtype, size_t* bytes) {
  return guarded([&] { at(bytes, "bytes") = kolo::size_of(kolo::c_api::dtype_of(dtype)); });
}

int kolo_tensor_from_dlpack(const void* dl_tensor, kolo_tensor* tensor) {
  return guarded([&] {
    at(tensor, "tensor") = {};
    *tensor =
        kolo::c_api::to_c(kolo::from_dlpack(at(static_cast<const kolo::dlpack::DLTensor*>(dl_tensor), "dl_tensor")));
  });
}

int kolo_tensor_to_dlpack(const kolo_tensor* tensor, void (*release)(void*), void* user, void** managed) {
  return guarded([&] {
    const auto call_release = [release](void* owner) {
      if (release) release(owner);
    };
    const std::shared_ptr<void> keep_alive(user, call_release);  // also calls it if an exception follows
    void*& made = at(managed, "managed");
    made = nullptr;
    made = kolo::to_dlpack(kolo::c_api::tensor_of(at(tensor, "tensor")), keep_alive);
  });
}

int kolo_rows_of_rank(int64_t rows, int ranks, int rank, int64_t* begin, int64_t* end) {
  return guarded([&] {
    if (rows < 0 || ranks < 1 || rank < 0 || rank >= ranks) {
      throw std::invalid_argument(
          fmt::format("{} rows, rank {} of {}: pass 0 rows or more, and a rank from 0 to below the number of ranks",
                      rows, rank, ranks));
    }
    const kolo::RowRange range = kolo::rows_of_rank(rows, ranks, rank);
    at(begin, "begin") = range.begin;
    at(end, "end") = range.end;
  });
}

int kolo_handle_wait(kolo_handle* handle) {
  return guarded([&] {
    at(handle, "handle").handle.wait();
    kolo::c_api::give_rows(*handle);
  });
}

int kolo_handle_wait_on_stream(kolo_handle* handle, void* stream) {
  return guarded([&] {
    at(handle, "handle").handle.wait(stream);
    kolo::c_api::give_rows(*handle);
  });
}

int kolo_handle_poll(kolo_handle* handle, int* done) {
  return guarded([&] { at(done, "done") = at(handle, "handle").handle.poll() ? 1 : 0; });
}

namespace {

/// The handles of an array, none of which may be null.
std::span<kolo_handle* const> listed(kolo_handle* const* handles, size_t count) {
  if (count == 0) return {};
  const std::span all(&at(handles, "handles"), count);
  for (kolo_handle* handle : all) (void)at(handle, "one of the handles");
  return all;
}

}  // namespace

int kolo_handle_is_empty(const kolo_handle* handle, int* empty) {
  return guarded([&] { at(empty, "empty") = at(handle, "handle").handle ? 0 : 1; });
}

int kolo_handle_wait_until(kolo_handle* handle, double seconds, int* done) {
  return guarded([&] {
    at(done, "done") = 0;
    auto& waited = at(handle, "handle").handle;
    *done = 1;  // also if it throws
    *done = waited.wait_until(kolo::c_api::from_now(seconds)) ? 1 : 0;
    if (*done) kolo::c_api::give_rows(*handle);
  });
}

int kolo_handle_wait_any(kolo_handle* const* handles, size_t count, size_t* index) {
  return guarded([&] {
    at(index, "index") = 0;
    std::vector<kolo::Handle*> each;
    for (kolo_handle* handle : listed(handles, count)) each.push_back(&handle->handle);
    *index = kolo::wait_any(std::span<kolo::Handle* const>(each));
  });
}

int kolo_handle_wait_all(kolo_handle* const* handles, size_t count) {
  return guarded([&] {
    std::optional<kolo::Error> first;
    for (kolo_handle* handle : listed(handles, count)) {
      try {
        handle->handle.wait();
        kolo::c_api::give_rows(*handle);
      } catch (const kolo::Error& error) {
        if (!first) first = error;
      }
    }
    if (first) throw kolo::Error(*first);
  });
}

int kolo_handle_on_done(kolo_handle* handle, void (*call)(kolo_status, const char*, void*), void* context) {
  return guarded([&] {
    if (!call) throw std::invalid_argument("call is a null pointer");
    at(handle, "handle").handle.on_done([call, context](const kolo::Error* error) {
      const int status = error ? static_cast<int>(error->code()) + 1 : KOLO_OK;
      call(static_cast<kolo_status>(status), error ? error->what() : "", context);
    });
  });
}

int kolo_handle_detach(kolo_handle* handle, void (*release)(void*), void* user) {
  struct Kept {
    std::unique_ptr<kolo_handle> handle;  // the operation writes to its rows
    void (*release)(void*) = nullptr;
    void* user = nullptr;
    ~Kept() {
      if (handle) kolo::c_api::give_rows(*handle);
      if (release) release(user);
    }
  };
  return guarded([&] {
    kolo::Handle& operation = at(handle, "handle").handle;
    const auto kept = std::make_shared<Kept>();
    operation.detach(kept);
    kept->handle.reset(handle);
    kept->release = release;
    kept->user = user;
  });
}

int kolo_handle_destroy(kolo_handle* handle) {
  return guarded([&] { delete handle; });
}

int kolo_free(void* bytes) {
  std::free(bytes);
  return KOLO_OK;
}

// Data-parallel training in the C API.

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <vector>

#include "runtime/c_api/operations.h"
#include "runtime/c_api/parts.h"

struct kolo_data_parallel {
  kolo::DataParallel parallel;
};

namespace kolo::c_api {
namespace {

std::vector<TrainedTensor> trained_tensors(const kolo_trained_tensor* given, size_t count) {
  if (count > 0) at(given, "tensors");
  std::vector<TrainedTensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    tensors.push_back({.name = &at(given[i].name, fmt::format("the name of tensor {}", i)),
                       .value = tensor_of(given[i].value),
                       .gradient = given[i].gradient.data ? tensor_of(given[i].gradient) : Tensor{}});
  }
  return tensors;
}

/// The program owns the memory.
std::function<Memory(std::size_t, Device)> wire_allocator(kolo_allocate_wire allocate, void* user) {
  if (!allocate) return {};
  return [allocate, user](std::size_t bytes, Device device) {
    void* const data = allocate(user, bytes, static_cast<int>(device.kind), device.index);
    if (!data)
      throw Error(ErrorCode::backend,
                  fmt::format("cannot allocate {} bytes (options->allocate returned a null pointer); "
                              "free some memory, or leave it out",
                              bytes));
    return Memory(nullptr, static_cast<std::byte*>(data), bytes, device);
  };
}

DataParallelOptions parallel_options(const kolo_data_parallel_options* given, size_t count) {
  DataParallelOptions options;
  if (!given) return options;
  options.group = group_of(given->group);
  if (given->prefix) options.prefix = given->prefix;
  if (given->average) options.op = ReduceOp::average;
  if (given->wire != 0) options.wire = dtype_of(given->wire);
  options.counts = given->counts != 0;
  if (given->order) options.order.assign(given->order, given->order + count);
  if (given->shards_from != 0) options.shards_from = given->shards_from;
  options.timeout_seconds = timeout_of(given->timeout_seconds);
  options.adopts = given->adopts != 0;
  options.allocate = wire_allocator(given->allocate, given->allocate_user);
  return options;
}

/// Runs `call` with the object behind the pointer.
template <class Pointer, class Call>
int with(Pointer* parallel, Call&& call, const char* function = __builtin_FUNCTION()) {
  return guarded([&] { call(at(parallel, "parallel").parallel); }, function);
}

}  // namespace
}  // namespace kolo::c_api

using kolo::DataParallel;
using kolo::c_api::at;
using kolo::c_api::with;

int kolo_data_parallel_create(kolo_session* session, const kolo_trained_tensor* tensors, size_t count,
                              const kolo_data_parallel_options* options, kolo_data_parallel** parallel) {
  return kolo::c_api::guarded([&] {
    kolo_data_parallel*& made = kolo::c_api::result(parallel, "parallel");
    made = new kolo_data_parallel{DataParallel(at(session, "session").session,
                                               kolo::c_api::trained_tensors(tensors, count),
                                               kolo::c_api::parallel_options(options, count))};
  });
}
int kolo_data_parallel_destroy(kolo_data_parallel* parallel) {
  return kolo::c_api::guarded([&] { delete parallel; });
}

int kolo_data_parallel_broadcast(kolo_data_parallel* parallel, int root, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.broadcast(root, stream); });
}
int kolo_data_parallel_skip_sync(kolo_data_parallel* parallel, int skip) {
  return with(parallel, [&](DataParallel& it) { it.skip_sync(skip != 0); });
}
int kolo_data_parallel_count(kolo_data_parallel* parallel, double mine, double expected) {
  return with(parallel, [&](DataParallel& it) { it.count(mine, expected); });
}

int kolo_data_parallel_ready(kolo_data_parallel* parallel, size_t i, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.ready(i, stream); });
}
int kolo_data_parallel_ready_rest(kolo_data_parallel* parallel, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.ready_rest(stream); });
}
int kolo_data_parallel_wait(kolo_data_parallel* parallel, size_t i) {
  return with(parallel, [&](DataParallel& it) { it.wait(i); });
}
int kolo_data_parallel_wait_on_stream(kolo_data_parallel* parallel, size_t i, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.wait(i, stream); });
}
int kolo_data_parallel_submitted(const kolo_data_parallel* parallel, const size_t** tensors, size_t* count) {
  return with(parallel, [&](const DataParallel& it) {
    const auto submitted = it.submitted();
    at(tensors, "tensors") = nullptr;
    at(count, "count") = submitted.size();
    if (!submitted.empty()) *tensors = submitted.data();
  });
}
int kolo_data_parallel_finish(kolo_data_parallel* parallel) {
  return with(parallel, [&](DataParallel& it) { it.finish(); });
}
int kolo_data_parallel_finish_on_stream(kolo_data_parallel* parallel, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.finish(stream); });
}

int kolo_data_parallel_counted(kolo_data_parallel* parallel, double* counted) {
  return with(parallel, [&](DataParallel& it) { at(counted, "counted") = it.counted(); });
}
int kolo_data_parallel_gradient_scale(kolo_data_parallel* parallel, double* scale) {
  return with(parallel, [&](DataParallel& it) { at(scale, "scale") = it.gradient_scale(); });
}

int kolo_data_parallel_shard(const kolo_data_parallel* parallel, size_t i, size_t* first, size_t* count, int* split) {
  return with(parallel, [&](const DataParallel& it) {
    if (i >= it.shards().size())
      throw std::invalid_argument(fmt::format("there is no tensor {} of {}", i, it.shards().size()));
    const kolo::TensorShard& shard = it.shards()[i];
    at(first, "first") = shard.first;
    at(count, "count") = shard.count;
    at(split, "split") = shard.split ? 1 : 0;
  });
}
int kolo_data_parallel_updated(kolo_data_parallel* parallel, size_t i, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.updated(i, stream); });
}
int kolo_data_parallel_use(kolo_data_parallel* parallel, size_t i) {
  return with(parallel, [&](DataParallel& it) { it.use(i); });
}
int kolo_data_parallel_use_on_stream(kolo_data_parallel* parallel, size_t i, void* stream) {
  return with(parallel, [&](DataParallel& it) { it.use(i, stream); });
}
int kolo_data_parallel_use_all(kolo_data_parallel* parallel) {
  return with(parallel, [&](DataParallel& it) { it.use_all(); });
}

int kolo_data_parallel_wait_seconds(const kolo_data_parallel* parallel, double* seconds) {
  return with(parallel, [&](const DataParallel& it) { at(seconds, "seconds") = it.wait_seconds(); });
}

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "runtime/c_api/operations.h"

// The operations of the C API between two ranks, on several tensors, on objects, and without data.

namespace kolo::c_api {
namespace {

PairOptions pair_options(const kolo_pair_options* given) {
  if (!given) return {};
  return {
      .group = group_of(given->group), .ready = given->ready, .timeout_seconds = timeout_of(given->timeout_seconds)};
}

/// Starts an operation by `call(session)`, which returns its handle.
template <class Call>
int start_handle(kolo_session* session, kolo_handle** handle, Call&& call,
                 const char* function = __builtin_FUNCTION()) {
  const auto guarded_call = [&] {
    kolo_handle*& made = result(handle, "handle");
    auto& chosen = at(session, "session").session;
    auto started = std::make_unique<kolo_handle>();
    started->handle = call(chosen);
    made = started.release();
  };
  return guarded(guarded_call, function);
}

/// Starts a grouped operation by `call(session, name, tensors, options)`. A tensor without an output is in-place.
template <class Options, class Given, class Call>
int start_group(kolo_session* session, const char* name, const kolo_named_tensor* tensors, size_t count,
                const Given* given, bool needs_out, kolo_handle** handle, Call&& call,
                const char* function = __builtin_FUNCTION()) {
  const auto start = [&](Session& chosen) {
    at(name, "name");
    if (count > 0) at(tensors, "tensors");
    if (given && given->tensor != 0)
      throw std::invalid_argument(
          "options->tensor is the id of a single tensor; pass a name, and 0 as options->tensor");
    if constexpr (requires { given->rows; }) {
      if (given && (given->rows || given->allocate))
        throw std::invalid_argument("rows and allocate are for a single tensor; pass null");
    }
    std::vector<NamedTensor> list;
    for (const kolo_named_tensor& tensor : std::span(tensors, count)) {
      const Tensor in = tensor_of(at(tensor.in, "the input of a tensor"));
      if (needs_out) at(tensor.out, "the output of a tensor");
      list.push_back({&at(tensor.name, "the name of a tensor"), in, tensor.out ? tensor_of(*tensor.out) : in});
    }
    return call(chosen, std::string_view(name), list, options_of<Options>(given, chosen, {}, nullptr));
  };
  return start_handle(session, handle, start, function);
}

/// A copy of `bytes` with a zero behind it, for kolo_free().
void* copy_of(std::string_view bytes) {
  auto* copy = static_cast<char*>(std::malloc(bytes.size() + 1));
  if (!copy) throw std::bad_alloc();
  if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
  copy[bytes.size()] = 0;
  return copy;
}

std::string_view bytes_of(const void* bytes, size_t count) {
  if (count == 0) return {};
  return {static_cast<const char*>(&at(static_cast<const char*>(bytes), "bytes")), count};
}

}  // namespace

Allocate allocate_of(kolo_allocate allocate, void* user, const Tensor& in) {
  if (!allocate) return {};
  return [allocate, user, dtype = in.dtype, device = in.device](const Shape& shape) {
    const Tensor made{allocate(user, shape.dims(), shape.extents().data()), shape, dtype, device};
    if (!made.data && made.elements() > 0) throw Error(ErrorCode::backend, "its function returned a null pointer");
    return made;
  };
}

}  // namespace kolo::c_api

using kolo::Session;
using kolo::c_api::at;
using kolo::c_api::group_of;
using kolo::c_api::guarded;
using kolo::c_api::pair_options;
using kolo::c_api::start_group;
using kolo::c_api::start_handle;
using kolo::c_api::tensor_of;

int kolo_declare(kolo_session* session, const char* name, kolo_tensor_id* tensor) {
  return guarded([&] {
    at(tensor, "tensor") = 0;
    *tensor = at(session, "session").session.declare(&at(name, "name")).index + 1;
  });
}

// ---- between two ranks ----------------------------------------------------------------------------------------------

int kolo_send_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
                    const kolo_pair_options* options, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) {
    return chosen.send_async(&at(name, "name"), tensor_of(at(tensor, "the tensor")), to, pair_options(options));
  });
}
int kolo_recv_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
                    const kolo_pair_options* options, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) {
    return chosen.recv_async(&at(name, "name"), tensor_of(at(tensor, "the tensor")), from, pair_options(options));
  });
}
int kolo_send(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
              const kolo_pair_options* options) {
  return guarded([&] {
    at(session, "session")
        .session.send(&at(name, "name"), tensor_of(at(tensor, "the tensor")), to, pair_options(options));
  });
}
int kolo_recv(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
              const kolo_pair_options* options) {
  return guarded([&] {
    at(session, "session")
        .session.recv(&at(name, "name"), tensor_of(at(tensor, "the tensor")), from, pair_options(options));
  });
}

// ---- several tensors ------------------------------------------------------------------------------------------------

int kolo_grouped_all_reduce_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                  size_t count, const kolo_all_reduce_options* options, kolo_handle** handle) {
  const auto call = [](Session& to, auto... arguments) { return to.grouped_all_reduce_async(arguments...); };
  return start_group<kolo::AllReduceOptions>(session, name, tensors, count, options, true, handle, call);
}
int kolo_grouped_broadcast_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                 size_t count, const kolo_broadcast_options* options, kolo_handle** handle) {
  const auto call = [](Session& to, auto... arguments) { return to.grouped_broadcast_async(arguments...); };
  return start_group<kolo::BroadcastOptions>(session, name, tensors, count, options, false, handle, call);
}
int kolo_grouped_reduce_scatter_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                      size_t count, const kolo_reduce_scatter_options* options, kolo_handle** handle) {
  const auto call = [](Session& to, auto... arguments) { return to.grouped_reduce_scatter_async(arguments...); };
  return start_group<kolo::ReduceScatterOptions>(session, name, tensors, count, options, true, handle, call);
}
int kolo_grouped_all_gather_async(kolo_session* session, const char* name, const kolo_named_tensor* tensors,
                                  size_t count, const kolo_all_gather_options* options, kolo_handle** handle) {
  const auto call = [](Session& to, auto... arguments) { return to.grouped_all_gather_async(arguments...); };
  return start_group<kolo::AllGatherOptions>(session, name, tensors, count, options, true, handle, call);
}

// ---- objects --------------------------------------------------------------------------------------------------------

int kolo_broadcast_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                          const kolo_broadcast_options* options, void** object, size_t* object_bytes) {
  return guarded([&] {
    void*& made = at(object, "object");
    made = nullptr;
    at(object_bytes, "object_bytes") = 0;
    auto& chosen = at(session, "session").session;
    at(name, "name");
    if (options && options->tensor != 0)
      throw std::invalid_argument(
          "options->tensor is the id of a tensor, not of an object; pass a name, and 0 as options->tensor");
    const auto converted = kolo::c_api::options_of<kolo::BroadcastOptions>(options, chosen, {}, nullptr);
    const std::string got = chosen.broadcast_object(name, kolo::c_api::bytes_of(bytes, count), converted);
    made = kolo::c_api::copy_of(got);
    *object_bytes = got.size();
  });
}

int kolo_all_gather_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                           const kolo_group* group, void** objects, size_t* sizes) {
  return guarded([&] {
    void*& made = at(objects, "objects");
    made = nullptr;
    at(sizes, "sizes");
    auto& chosen = at(session, "session").session;
    const auto got = chosen.all_gather_object(&at(name, "name"), kolo::c_api::bytes_of(bytes, count), group_of(group));
    std::string all;
    for (const std::string& object : got) all += object;
    made = kolo::c_api::copy_of(all);
    std::ranges::transform(got, sizes, [](const std::string& object) { return object.size(); });
  });
}

// ---- without data ---------------------------------------------------------------------------------------------------

int kolo_barrier_async(kolo_session* session, const kolo_group* group, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) { return chosen.barrier_async(group_of(group)); });
}
int kolo_barrier(kolo_session* session, const kolo_group* group) {
  return guarded([&] { at(session, "session").session.barrier(group_of(group)); });
}
int kolo_monitored_barrier_async(kolo_session* session, double seconds, const kolo_group* group, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) {
    return chosen.barrier_async(
        kolo::BarrierOptions{.group = group_of(group), .timeout_seconds = seconds == 0 ? 1e-3 : seconds});
  });
}
int kolo_monitored_barrier(kolo_session* session, double seconds, const kolo_group* group) {
  return guarded([&] { at(session, "session").session.monitored_barrier(seconds, group_of(group)); });
}
int kolo_join(kolo_session* session, const kolo_group* group, int* last) {
  return guarded([&] {
    const int rank = at(session, "session").session.join(group_of(group));
    if (last) *last = rank;
  });
}

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "runtime/c_api/operations.h"

// The operations of the C API between two ranks, on several tensors, on objects, and without data.

namespace kolo::c_api {
namespace {

PairOptions pair_options(const kolo_pair_options* given) {
  if (!given) return {};
  return {.group = group_of(given->group),
          .tag = given->tag,
          .ready = given->ready,
          .timeout_seconds = timeout_of(given->timeout_seconds),
          .priority = given->priority};
}

static_assert(sizeof(kolo_received) == sizeof(Received) && offsetof(kolo_received, tag) == offsetof(Received, tag) &&
              offsetof(kolo_received, bytes) == offsetof(Received, bytes));
Received* received_of(kolo_received* received) {
  return reinterpret_cast<Received*>(&at(received, "received"));
}
std::span<const int> tags_of(const int* tags, size_t count) {
  if (count > 0) at(tags, "tags");
  return {tags, count};
}

BarrierOptions barrier_options(const kolo_barrier_options* given) {
  if (!given) return {};
  return {.group = group_of(given->group),
          .timeout_seconds = timeout_of(given->timeout_seconds),
          .priority = given->priority};
}

std::vector<PairOperation> pair_operations(const kolo_pair_operation* given, size_t count) {
  std::vector<PairOperation> all;
  for (size_t i = 0; i < count; ++i) {
    const kolo_pair_operation& one = (&at(given, "operations"))[i];
    all.push_back(
        {one.sends != 0, tensor_of(at(one.tensor, "the tensor")), one.peer, one.tag, one.name ? one.name : ""});
  }
  return all;
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

/// Starts a grouped operation by `call(session, name, tensors, options)`, without a name if it is null. A tensor
/// without an output is in-place.
template <class Options, class Given, class Call>
int start_group(kolo_session* session, const char* name, const kolo_named_tensor* tensors, size_t count,
                const Given* given, bool needs_out, kolo_handle** handle, Call&& call,
                const char* function = __builtin_FUNCTION()) {
  const auto start = [&](Session& chosen) {
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
      if (name) at(tensor.name, "the name of a tensor");
      list.push_back({name ? tensor.name : "", in, tensor.out ? tensor_of(*tensor.out) : in});
    }
    const auto options = options_of<Options>(given, chosen, {}, nullptr);
    return name ? call(chosen, std::string_view(name), list, options) : call(chosen, list, options);
  };
  return start_handle(session, handle, start, function);
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
using kolo::c_api::barrier_options;
using kolo::c_api::group_of;
using kolo::c_api::guarded;
using kolo::c_api::pair_operations;
using kolo::c_api::pair_options;
using kolo::c_api::received_of;
using kolo::c_api::start_group;
using kolo::c_api::start_handle;
using kolo::c_api::tags_of;
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
    const auto sent = tensor_of(at(tensor, "the tensor"));
    const auto how = pair_options(options);
    return name ? chosen.send_async(name, sent, to, how) : chosen.send_async(sent, to, how);
  });
}
int kolo_recv_async(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
                    const kolo_pair_options* options, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) {
    const auto received = tensor_of(at(tensor, "the tensor"));
    const auto how = pair_options(options);
    return name ? chosen.recv_async(name, received, from, how) : chosen.recv_async(received, from, how);
  });
}
int kolo_send(kolo_session* session, const char* name, const kolo_tensor* tensor, int to,
              const kolo_pair_options* options) {
  return guarded([&] {
    Session& chosen = at(session, "session").session;
    const auto sent = tensor_of(at(tensor, "the tensor"));
    const auto how = pair_options(options);
    name ? chosen.send(name, sent, to, how) : chosen.send(sent, to, how);
  });
}
int kolo_recv(kolo_session* session, const char* name, const kolo_tensor* tensor, int from,
              const kolo_pair_options* options) {
  return guarded([&] {
    Session& chosen = at(session, "session").session;
    const auto received = tensor_of(at(tensor, "the tensor"));
    const auto how = pair_options(options);
    name ? chosen.recv(name, received, from, how) : chosen.recv(received, from, how);
  });
}

int kolo_recv_any_async(kolo_session* session, const kolo_tensor* tensor, const int* tags, size_t count,
                        const kolo_pair_options* options, kolo_received* received, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) {
    return chosen.recv_any_async(tensor_of(at(tensor, "the tensor")), tags_of(tags, count), received_of(received),
                                 pair_options(options));
  });
}
int kolo_recv_any(kolo_session* session, const kolo_tensor* tensor, const int* tags, size_t count,
                  const kolo_pair_options* options, kolo_received* received) {
  return guarded([&] {
    *received_of(received) =
        at(session, "session")
            .session.recv_any(tensor_of(at(tensor, "the tensor")), tags_of(tags, count), pair_options(options));
  });
}

int kolo_batch_async(kolo_session* session, const kolo_pair_operation* operations, size_t count,
                     const kolo_pair_options* options, kolo_handle** handles) {
  return guarded([&] {
    std::vector<std::unique_ptr<kolo_handle>> started;
    for (size_t i = 0; i < count; ++i) {
      (&at(handles, "handles"))[i] = nullptr;
      started.push_back(std::make_unique<kolo_handle>());
    }
    const auto all = pair_operations(operations, count);
    auto made = at(session, "session").session.batch_async(all, pair_options(options));
    for (size_t i = 0; i < count; ++i) {
      started[i]->handle = std::move(made[i]);
      handles[i] = started[i].release();
    }
  });
}
int kolo_batch(kolo_session* session, const kolo_pair_operation* operations, size_t count,
               const kolo_pair_options* options) {
  return guarded(
      [&] { at(session, "session").session.batch(pair_operations(operations, count), pair_options(options)); });
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
    if (options && options->tensor != 0)
      throw std::invalid_argument(
          "options->tensor is the id of a tensor, not of an object; pass a name, and 0 as options->tensor");
    const auto converted = kolo::c_api::options_of<kolo::BroadcastOptions>(options, chosen, {}, nullptr);
    const auto mine = kolo::c_api::bytes_of(bytes, count);
    const std::string got =
        name ? chosen.broadcast_object(name, mine, converted) : chosen.broadcast_object(mine, converted);
    made = kolo::c_api::copy_of(got);
    *object_bytes = got.size();
  });
}

int kolo_all_gather_object(kolo_session* session, const char* name, const void* bytes, size_t count,
                           const kolo_group* group, double timeout_seconds, void** objects, size_t* sizes) {
  return guarded([&] {
    void*& made = at(objects, "objects");
    made = nullptr;
    at(sizes, "sizes");
    auto& chosen = at(session, "session").session;
    const auto mine = kolo::c_api::bytes_of(bytes, count);
    const auto timeout = kolo::c_api::timeout_of(timeout_seconds);
    const auto got = name ? chosen.all_gather_object(name, mine, group_of(group), timeout)
                          : chosen.all_gather_object(mine, group_of(group), timeout);
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
int kolo_barrier_with_async(kolo_session* session, const kolo_barrier_options* options, kolo_handle** handle) {
  return start_handle(session, handle, [&](Session& chosen) { return chosen.barrier_async(barrier_options(options)); });
}
int kolo_barrier_with(kolo_session* session, const kolo_barrier_options* options) {
  return guarded([&] { at(session, "session").session.barrier(barrier_options(options)); });
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

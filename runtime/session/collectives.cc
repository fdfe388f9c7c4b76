#include <fmt/format.h>
#include <kolo/session.h>

#include <cstring>
#include <utility>

#include "runtime/session/parts.h"

// The operations that move data, each as one line that says what it is.

namespace kolo {

Handle Session::all_reduce_async(TensorId tensor, Tensor in, Tensor out, const AllReduceOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_reduce, tensor, in, out, options, false)};
}
Handle Session::all_reduce_async(std::string_view name, Tensor in_out, const AllReduceOptions& options) {
  return {parts_->driver,
          parts_->collective(OpKind::all_reduce, parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::all_reduce(std::string_view name, Tensor in_out, const AllReduceOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_reduce, parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::broadcast_async(TensorId tensor, Tensor in_out, const BroadcastOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::broadcast, tensor, in_out, in_out, options, false)};
}
Handle Session::broadcast_async(std::string_view name, Tensor in_out, const BroadcastOptions& options) {
  return {parts_->driver,
          parts_->collective(OpKind::broadcast, parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::broadcast(std::string_view name, Tensor in_out, const BroadcastOptions& options) {
  parts_->finish(parts_->collective(OpKind::broadcast, parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::reduce_async(TensorId tensor, Tensor in, Tensor out, const ReduceOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::reduce, tensor, in, out, options, false)};
}
Handle Session::reduce_async(std::string_view name, Tensor in_out, const ReduceOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::reduce, parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::reduce(std::string_view name, Tensor in_out, const ReduceOptions& options) {
  parts_->finish(parts_->collective(OpKind::reduce, parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::all_gather_async(TensorId tensor, Tensor in, Tensor out, const AllGatherOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_gather, tensor, in, out, options, false)};
}
Handle Session::all_gather_async(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_gather, parts_->user_name(name), in, out, options, false)};
}
void Session::all_gather(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_gather, parts_->user_name(name), in, out, options, true));
}

Handle Session::reduce_scatter_async(TensorId tensor, Tensor in, Tensor out, const ReduceScatterOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::reduce_scatter, tensor, in, out, options, false)};
}
Handle Session::reduce_scatter_async(std::string_view name, Tensor in, Tensor out,
                                     const ReduceScatterOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::reduce_scatter, parts_->user_name(name), in, out, options, false)};
}
void Session::reduce_scatter(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options) {
  parts_->finish(parts_->collective(OpKind::reduce_scatter, parts_->user_name(name), in, out, options, true));
}

Handle Session::all_to_all_async(TensorId tensor, Tensor in, Tensor out, const AllToAllOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_to_all, tensor, in, out, options, false)};
}
Handle Session::all_to_all_async(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_to_all, parts_->user_name(name), in, out, options, false)};
}
void Session::all_to_all(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_to_all, parts_->user_name(name), in, out, options, true));
}

Handle Session::gather_async(TensorId tensor, Tensor in, Tensor out, const GatherOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::gather, tensor, in, out, options, false)};
}
Handle Session::gather_async(std::string_view name, Tensor in, Tensor out, const GatherOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::gather, parts_->user_name(name), in, out, options, false)};
}
void Session::gather(std::string_view name, Tensor in, Tensor out, const GatherOptions& options) {
  parts_->finish(parts_->collective(OpKind::gather, parts_->user_name(name), in, out, options, true));
}

Handle Session::scatter_async(TensorId tensor, Tensor in, Tensor out, const ScatterOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::scatter, tensor, in, out, options, false)};
}
Handle Session::scatter_async(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::scatter, parts_->user_name(name), in, out, options, false)};
}
void Session::scatter(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options) {
  parts_->finish(parts_->collective(OpKind::scatter, parts_->user_name(name), in, out, options, true));
}

Handle Session::send_async(std::string_view name, Tensor tensor, int to, const PairOptions& options) {
  return {parts_->driver, parts_->send_recv(parts_->user_name(name), tensor, true, to, options, false)};
}
Handle Session::recv_async(std::string_view name, Tensor tensor, int from, const PairOptions& options) {
  return {parts_->driver, parts_->send_recv(parts_->user_name(name), tensor, false, from, options, false)};
}
void Session::send(std::string_view name, Tensor tensor, int to, const PairOptions& options) {
  parts_->finish(parts_->send_recv(parts_->user_name(name), tensor, true, to, options, true));
}
void Session::recv(std::string_view name, Tensor tensor, int from, const PairOptions& options) {
  parts_->finish(parts_->send_recv(parts_->user_name(name), tensor, false, from, options, true));
}

Handle Session::grouped_all_reduce_async(std::string_view name, std::span<const NamedTensor> tensors,
                                         const AllReduceOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::all_reduce, parts_->user_name(name), tensors, options)};
}
Handle Session::grouped_broadcast_async(std::string_view name, std::span<const NamedTensor> tensors,
                                        const BroadcastOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::broadcast, parts_->user_name(name), tensors, options)};
}
Handle Session::grouped_reduce_scatter_async(std::string_view name, std::span<const NamedTensor> tensors,
                                             const ReduceScatterOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::reduce_scatter, parts_->user_name(name), tensors, options)};
}
Handle Session::grouped_all_gather_async(std::string_view name, std::span<const NamedTensor> tensors,
                                         const AllGatherOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::all_gather, parts_->user_name(name), tensors, options)};
}

Handle Session::refuse_async(OpKind kind, std::string_view name, const Failure& why, const Group& group) {
  return {parts_->driver, parts_->refusal(kind, parts_->user_name(name), why, group)};
}

std::string Session::broadcast_object(std::string_view name, std::string_view bytes, const BroadcastOptions& options) {
  auto length = static_cast<std::uint64_t>(bytes.size());
  broadcast(name, view_scalar(length), options);
  std::string object(bytes.substr(0, static_cast<std::size_t>(length)));
  object.resize(static_cast<std::size_t>(length));
  const Tensor tensor{object.data(), Shape{static_cast<std::int64_t>(length)}, DType::u8, {}};
  parts_->finish(parts_->collective(OpKind::broadcast, fmt::format("{}bytes.{}", reserved_prefix, name), tensor, tensor,
                                    options, true));
  return object;
}

std::vector<std::string> Session::all_gather_object(std::string_view name, std::string_view bytes, const Group& group,
                                                    std::optional<double> timeout_seconds) {
  return Parts::gathered(bytes, [&](const Tensor& mine, const Allocate& allocate, BlockRows& rows) {
    all_gather(name, mine, {},
               {.group = group, .allocate = allocate, .rows = &rows, .timeout_seconds = timeout_seconds});
  });
}

std::vector<std::string> Session::Parts::gathered(std::string_view bytes, const Gather& gather) {
  std::string mine(bytes), all;
  BlockRows rows;
  const auto allocate = [&](const Shape& shape) {
    all.resize(static_cast<std::size_t>(shape[0]));
    return Tensor{all.data(), shape, DType::u8, {}};
  };
  gather(Tensor{mine.data(), Shape{static_cast<std::int64_t>(mine.size())}, DType::u8, {}}, allocate, rows);
  std::vector<std::string> objects;
  std::size_t begin = 0;
  for (std::int64_t count : rows) {
    objects.push_back(all.substr(begin, static_cast<std::size_t>(count)));
    begin += static_cast<std::size_t>(count);
  }
  return objects;
}

}  // namespace kolo

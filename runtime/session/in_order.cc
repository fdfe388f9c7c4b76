#include <kolo/session.h>

#include "runtime/session/parts.h"

// The operations of groups that match them by their order: as in collectives.cc, without a name.

namespace kolo {

Handle Session::all_reduce_async(Tensor in, Tensor out, const AllReduceOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_reduce, Parts::Unnamed(), in, out, options, false)};
}

Handle Session::all_reduce_async(Tensor in_out, const AllReduceOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_reduce, Parts::Unnamed(), in_out, in_out, options, false)};
}

void Session::all_reduce(Tensor in_out, const AllReduceOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_reduce, Parts::Unnamed(), in_out, in_out, options, true));
}

Handle Session::broadcast_async(Tensor in_out, const BroadcastOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::broadcast, Parts::Unnamed(), in_out, in_out, options, false)};
}

void Session::broadcast(Tensor in_out, const BroadcastOptions& options) {
  parts_->finish(parts_->collective(OpKind::broadcast, Parts::Unnamed(), in_out, in_out, options, true));
}

Handle Session::reduce_async(Tensor in, Tensor out, const ReduceOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::reduce, Parts::Unnamed(), in, out, options, false)};
}

void Session::reduce(Tensor in_out, const ReduceOptions& options) {
  parts_->finish(parts_->collective(OpKind::reduce, Parts::Unnamed(), in_out, in_out, options, true));
}

Handle Session::all_gather_async(Tensor in, Tensor out, const AllGatherOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_gather, Parts::Unnamed(), in, out, options, false)};
}

void Session::all_gather(Tensor in, Tensor out, const AllGatherOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_gather, Parts::Unnamed(), in, out, options, true));
}

Handle Session::reduce_scatter_async(Tensor in, Tensor out, const ReduceScatterOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::reduce_scatter, Parts::Unnamed(), in, out, options, false)};
}

void Session::reduce_scatter(Tensor in, Tensor out, const ReduceScatterOptions& options) {
  parts_->finish(parts_->collective(OpKind::reduce_scatter, Parts::Unnamed(), in, out, options, true));
}

Handle Session::all_to_all_async(Tensor in, Tensor out, const AllToAllOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::all_to_all, Parts::Unnamed(), in, out, options, false)};
}

void Session::all_to_all(Tensor in, Tensor out, const AllToAllOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_to_all, Parts::Unnamed(), in, out, options, true));
}

Handle Session::gather_async(Tensor in, Tensor out, const GatherOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::gather, Parts::Unnamed(), in, out, options, false)};
}

void Session::gather(Tensor in, Tensor out, const GatherOptions& options) {
  parts_->finish(parts_->collective(OpKind::gather, Parts::Unnamed(), in, out, options, true));
}

Handle Session::scatter_async(Tensor in, Tensor out, const ScatterOptions& options) {
  return {parts_->driver, parts_->collective(OpKind::scatter, Parts::Unnamed(), in, out, options, false)};
}

void Session::scatter(Tensor in, Tensor out, const ScatterOptions& options) {
  parts_->finish(parts_->collective(OpKind::scatter, Parts::Unnamed(), in, out, options, true));
}

Handle Session::grouped_all_reduce_async(std::span<const NamedTensor> tensors, const AllReduceOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::all_reduce, "", tensors, options)};
}

Handle Session::grouped_broadcast_async(std::span<const NamedTensor> tensors, const BroadcastOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::broadcast, "", tensors, options)};
}

Handle Session::grouped_reduce_scatter_async(std::span<const NamedTensor> tensors,
                                             const ReduceScatterOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::reduce_scatter, "", tensors, options)};
}

Handle Session::grouped_all_gather_async(std::span<const NamedTensor> tensors, const AllGatherOptions& options) {
  return {parts_->driver, parts_->grouped(OpKind::all_gather, "", tensors, options)};
}

std::string Session::broadcast_object(std::string_view bytes, const BroadcastOptions& options) {
  auto length = static_cast<std::uint64_t>(bytes.size());
  broadcast(view_scalar(length), options);
  std::string object(bytes.substr(0, static_cast<std::size_t>(length)));
  object.resize(static_cast<std::size_t>(length));
  broadcast(Tensor{object.data(), Shape{static_cast<std::int64_t>(length)}, DType::u8, {}}, options);
  return object;
}

std::vector<std::string> Session::all_gather_object(std::string_view bytes, const Group& group,
                                                    std::optional<double> timeout_seconds) {
  return Parts::gathered(bytes, [&](const Tensor& mine, const Allocate& allocate, BlockRows& rows) {
    all_gather(mine, {}, {.group = group, .allocate = allocate, .rows = &rows, .timeout_seconds = timeout_seconds});
  });
}

}  // namespace kolo

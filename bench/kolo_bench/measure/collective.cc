#include "bench/kolo_bench/measure/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

namespace kolo::bench {
namespace {

constexpr std::array<Collective, 9> table{{
    {OpKind::all_reduce, "all_reduce", "all_reduce_perf", true},
    {OpKind::all_gather, "all_gather", "all_gather_perf", true},
    {OpKind::reduce_scatter, "reduce_scatter", "reduce_scatter_perf", true},
    {OpKind::broadcast, "broadcast", "broadcast_perf", false},
    {OpKind::reduce, "reduce", "reduce_perf", true},
    {OpKind::all_to_all, "all_to_all", "alltoall_perf", true},
    {OpKind::gather, "gather", "gather_perf", true},
    {OpKind::scatter, "scatter", "scatter_perf", true},
    {OpKind::send_recv, "send_recv", "sendrecv_perf", true},
}};

/// "osu_allreduce", "all_reduce_perf", "All-Reduce" → "allreduce".
std::string stem_of(std::string_view word) {
  if (word.starts_with("osu_")) word.remove_prefix(4);
  if (word.ends_with("_perf")) word.remove_suffix(5);
  std::string stem;
  for (const char c : word) {
    if (c != '_' && c != '-') stem += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return stem == "bcast" ? "broadcast" : stem;
}

}  // namespace

std::span<const Collective> collectives() {
  return table;
}

const Collective* find_collective(std::string_view word) {
  const auto stem = stem_of(word);
  const auto found = std::ranges::find_if(table, [&](const Collective& row) { return stem_of(row.name) == stem; });
  return found == table.end() ? nullptr : &*found;
}

Extent extent_of(OpKind kind, std::int64_t bytes, DType dtype, int ranks) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  if (!has_blocks(kind)) {
    const std::int64_t count = bytes / element;
    return {count, count, count, count * element};
  }
  constexpr std::int64_t grain = 16;
  std::int64_t block = bytes / element / ranks;
  if (block * element >= grain) block -= block % (grain / element);
  const std::int64_t all = block * ranks;
  const bool joins = kind == OpKind::all_gather || kind == OpKind::gather;
  const bool splits = kind == OpKind::reduce_scatter || kind == OpKind::scatter;
  return {joins ? block : all, splits ? block : all, block, all * element};
}

std::optional<double> bus_factor(OpKind kind, int ranks) {
  if (ranks < 2) return std::nullopt;
  const double share = static_cast<double>(ranks - 1) / ranks;
  if (kind == OpKind::all_reduce) return 2 * share;
  return has_blocks(kind) ? share : 1;
}

std::string_view nccl_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "double";
    case DType::f32: return "float";
    case DType::f16: return "half";
    case DType::bf16: return "bfloat16";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::i16: return "int16";
    case DType::i8: return "int8";
    case DType::u64: return "uint64";
    case DType::u32: return "uint32";
    case DType::u16: return "uint16";
    case DType::u8: return "uint8";
    case DType::boolean: return "bool";
  }
  return "unknown";
}

std::string_view nccl_name(ReduceOp op) {
  if (op == ReduceOp::product) return "prod";
  return op == ReduceOp::average ? "avg" : to_string(op);
}

Work make_work(const Signature& signature, std::int64_t bytes, bool in_place, int rank, int ranks, const Area& area) {
  const DType dtype = signature.dtype;
  const Extent extent = extent_of(signature.kind, bytes, dtype, ranks);
  const auto tensor = [&](std::byte* data, std::int64_t elements) {
    return Tensor{data, Shape{elements}, dtype, area.device};
  };
  const std::size_t own = static_cast<std::size_t>(rank) * static_cast<std::size_t>(extent.count) * size_of(dtype);

  Work work{signature, in_place, {}, {}};
  for (int lane = 0; lane < area.lanes; ++lane) {
    std::byte* in = area.in + static_cast<std::size_t>(lane) * area.in_stride;
    std::byte* out = area.out + static_cast<std::size_t>(lane) * area.out_stride;
    if (in_place && extent.in < extent.out)
      in = out + own;
    else if (in_place && extent.in > extent.out)
      out = in + own;
    else if (in_place && has_blocks(signature.kind) && signature.kind != OpKind::all_to_all)
      in = out;  // one rank: its block is all
    else if (in_place)
      out = in;
    work.lanes.push_back({tensor(in, extent.in), tensor(out, extent.out)});
  }
  work.signature.device = area.device.kind;
  work.signature.shape = work.lanes.front().in.shape;
  work.name = fmt::format("{} {} {} {}{}", to_string(signature.kind), bytes, to_string(dtype),
                          reduces(signature.kind) ? to_string(signature.op) : fmt::format("from {}", signature.root),
                          in_place ? " in place" : "");
  return work;
}

}  // namespace kolo::bench

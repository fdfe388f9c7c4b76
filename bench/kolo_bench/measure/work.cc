#include "bench/kolo_bench/measure/work.h"

#include <fmt/format.h>

#include "bench/kolo_bench/measure/collective.h"

namespace kolo::bench {

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

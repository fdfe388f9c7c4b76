#include "models/compute/arrivals.h"

#include <algorithm>

namespace kolo::models {
namespace {

constexpr std::size_t alignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::array<Tensor, 2> Arrivals::receive(Compute& compute, const std::array<Tensor, 2>& of_host) {
  const std::size_t needed = aligned(of_host[0].bytes()) + aligned(of_host[1].bytes()), held = memory_.bytes() / 2;
  const std::size_t half = std::max(needed, held);
  const Tensor area = memory_.make(compute, DType::u8, {static_cast<std::int64_t>(2 * half)}, "batches");
  auto* at = static_cast<std::byte*>(area.data) + (second_ ? half : 0);
  second_ = !second_;
  std::array<Tensor, 2> here = of_host;
  for (Tensor& tensor : here) {
    tensor.data = at;
    tensor.device = compute.device();
    at += aligned(tensor.bytes());
  }
  compute.copy_ahead(of_host, here, needed > held);
  return here;
}

}  // namespace kolo::models

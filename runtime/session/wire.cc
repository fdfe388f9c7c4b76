#include "runtime/session/wire.h"

#include <cstdint>
#include <thread>

#include <kolo/float16.h>

#include "ops/gpu/packer.h"

namespace kolo {
namespace {

bool on_host(const Tensor& tensor) {
  return tensor.device.kind == DeviceKind::cpu;
}

void convert_on_gpu(const Tensor& from, const Tensor& to, double scale, void* stream) {
  Packer(cuda_gpu(from.device.index), stream)
      .run({{.from = static_cast<const std::byte*>(from.data),
             .to = static_cast<std::byte*>(to.data),
             .count = from.elements()}},
           {.from = from.dtype, .to = to.dtype, .scale = scale});
}

// Loops that compilers vectorise: no call in them, and no memory that two pointers share.

template <class Round>
void round_all(const Tensor& from, float scale, const Tensor& to, Round round) {
  const float* const __restrict in = static_cast<const float*>(from.data);
  auto* const __restrict out = static_cast<std::uint16_t*>(to.data);
  const std::int64_t count = from.elements();
  for (std::int64_t i = 0; i < count; ++i) out[i] = round(scale * in[i]).bits;
}

template <class Half>
void widen_all(const Tensor& from, const Tensor& to) {
  const auto* const __restrict in = static_cast<const std::uint16_t*>(from.data);
  auto* const __restrict out = static_cast<float*>(to.data);
  const std::int64_t count = from.elements();
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_float(Half{in[i]});
}

}  // namespace

void round_to_wire(const Tensor& from, double scale, const Tensor& to, void* stream) {
  if (!on_host(from)) return convert_on_gpu(from, to, scale, stream);
  const auto factor = static_cast<float>(scale);
  if (to.dtype == DType::bf16) {
    round_all(from, factor, to, [](float value) { return to_bfloat16(value); });
  } else {
    round_all(from, factor, to, [](float value) { return to_float16(value); });
  }
}

void widen_from_wire(const Tensor& from, const Tensor& to, void* stream) {
  if (!on_host(from)) return convert_on_gpu(from, to, 1, stream);
  from.dtype == DType::bf16 ? widen_all<BFloat16>(from, to) : widen_all<Float16>(from, to);
}

void await_stream(const Tensor& tensor, void* stream) {
  if (on_host(tensor)) return;
  for (const auto point = cuda_gpu(tensor.device.index).mark(stream); !point->passed();) std::this_thread::yield();
}

}  // namespace kolo

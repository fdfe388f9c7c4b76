#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <vector>

namespace kolo::testing {

/// torch's CUDA on fake GPUs, without its library: streams, events, memory, and the few operations on tensors that kolo
/// needs. As in torch's caching allocator, the memory of a tensor that dies is used again at once on the stream that it
/// was allocated on, and behind all streams that it was recorded on: here it is overwritten there. A program links
/// this.

c10::Stream default_stream(int gpu);
/// A stream that is not the default one.
c10::Stream new_stream(int gpu);

/// Floats that the current stream writes, late.
at::Tensor written_late(int gpu, const std::vector<float>& values, at::IntArrayRef sizes);

/// The floats that the current stream finds.
std::vector<float> found(const at::Tensor& tensor);

/// While one lives, the stream of a GPU does not go on.
class Held {
 public:
  explicit Held(const c10::Stream& stream);
  ~Held() { *go_ = true; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  std::shared_ptr<std::atomic<bool>> go_;
};

}  // namespace kolo::testing

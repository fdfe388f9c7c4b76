#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/compute/precision.h"

namespace kolo::models {

/// Memory that a pass works in: grows to what it is asked for, and keeps that. It begins at a cache line; large ones
/// ask for large pages. Contents are lost when it grows.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  /// At least `count` numbers. `what` says in a ModelError what there was no memory for.
  float* floats(std::int64_t count, std::string_view what);
  Work* work(Precision precision, std::int64_t count, std::string_view what);

  float* floats() const { return static_cast<float*>(data_); }
  Work* work() const { return static_cast<Work*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void need(std::size_t bytes, std::string_view what);

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kolo::models

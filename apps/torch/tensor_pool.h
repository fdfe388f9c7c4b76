#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

#include <kolo/session.h>

namespace kolo_torch {

/// Tensors in session memory, which ranks of a node read and write in each other's without a copy. What is given back
/// is kept for the next of its size, up to a limit, since a piece costs an open file and page faults. Tensors may
/// outlive the pool and the session. Thread-safe.
class TensorPool {
 public:
  explicit TensorPool(std::size_t most_kept_bytes = std::size_t{256} << 20);

  /// A tensor of one dimension, not initialised, of this type and device: of session memory, or, where it is small or
  /// there is none, as at::empty() makes it.
  at::Tensor allocate(kolo::Session& session, std::int64_t elements, const at::TensorOptions& options);

 private:
  struct Kept;
  const std::shared_ptr<Kept> kept_;
};

}  // namespace kolo_torch

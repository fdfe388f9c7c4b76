#pragma once

#include <compare>
#include <cstddef>
#include <memory>

#include "models/compute/cuda/team.h"

namespace kolo::models::cuda {

/// Causal attention in bf16, as Compute::attend() has it, of heads whose rows have no gaps.
struct AttentionShape {
  Index sequences = 0, positions = 0, heads = 0, kv_heads = 0, head_dim = 0;

  auto operator<=>(const AttentionShape&) const = default;
};

struct LibraryAttention {
  AttentionShape shape;
  const Half *q = nullptr, *k = nullptr, *v = nullptr;
  Half* out = nullptr;
  float* log_sums = nullptr;
};

struct LibraryAttentionBack {
  AttentionShape shape;
  const Half *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
  const float* log_sums = nullptr;
  const Half* d_out = nullptr;
  Half *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;
  void* scratch = nullptr;  ///< of attend_backward_bytes()
};

/// Attention by a library, on the default stream of the GPU that is current, with the same bits in every run. Errors:
/// ModelError with the call's name.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;

  /// False, and nothing done, where the library has nothing for the shape.
  virtual bool attend(const LibraryAttention& of) = 0;
  /// Gradients of scores, in bytes, that one pass back is to keep: of more sequences there are several passes.
  virtual Index most_score_bytes() const { return Index{512} << 20; }
  /// Scratch memory that attend_backward() takes; 0 where the library has nothing for the shape.
  virtual std::size_t attend_backward_bytes(const AttentionShape& shape) = 0;
  /// Of a shape that there are bytes for.
  virtual void attend_backward(const LibraryAttentionBack& of) = 0;
};

/// Whether open_cudnn() will find what it needs, as far as that can be known before.
bool cudnn_installed();

/// cuDNN, opened when it is asked for; null where it is not installed, too old, does not begin, or kolo was built
/// without its header.
///
/// workspace  `workspace_bytes` of the GPU's memory; it must outlive the library's use
std::unique_ptr<AttentionLibrary> open_cudnn(void* workspace);

}  // namespace kolo::models::cuda

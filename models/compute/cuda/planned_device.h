#pragma once

#include "models/compute/cuda/arena.h"
#include "models/compute/cuda/device.h"

namespace kolo::models::cuda {

/// A GPU that is not there: its memory is counted, and nothing is computed.
class PlannedDevice final : public ComputeDevice {
 public:
  /// What an arena must have for all that was allocated.
  std::size_t most_bytes() const { return arena_.most_bytes(); }

  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void copy(void*, const void*, std::size_t) override {}
  std::unique_ptr<Point> copy_beside(void*, const void*, std::size_t, Point&) override { return mark(); }
  void wait() override {}
  std::unique_ptr<Point> mark() override;
  void* allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* memory) noexcept override;
  void launch(const Kernel&) override {}
  bool multiply(const PlainProduct&) override { return true; }
  AttentionLibrary* attention() override { return has_attention_library() ? &attention_ : nullptr; }

 private:
  /// What cuDNN takes.
  struct PlannedAttention final : AttentionLibrary {
    bool attend(const LibraryAttention&) override { return true; }
    std::size_t attend_backward_bytes(const AttentionShape& shape) override;
    void attend_backward(const LibraryAttentionBack&) override {}
  };

  Arena arena_;
  PlannedAttention attention_;
};

}  // namespace kolo::models::cuda

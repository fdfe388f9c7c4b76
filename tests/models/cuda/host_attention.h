#pragma once

#include <algorithm>

#include "models/compute/cuda/device.h"
#include "tests/models/cuda/host_device.h"

namespace kolo::testing {

/// Attention by a library, which is kolo's own kernels again: so all that the library is given is seen. A pass back
/// keeps scores of few sequences.
class HostAttention final : public models::cuda::AttentionLibrary {
 public:
  explicit HostAttention(models::cuda::ComputeDevice& device) : device_(&device) {}

  bool attend(const models::cuda::LibraryAttention& of) override {
    ++host_devices().attentions;
    with_columns(of.shape, [&]<int columns>() {
      using Kernel = models::cuda::AttendBf16<columns>;
      device_->launch(Kernel{tiles<typename Kernel::Base>(of), of.out, of.log_sums});
    });
    return true;
  }
  models::cuda::Index most_score_bytes() const override { return 300'000; }
  std::size_t attend_backward_bytes(const models::cuda::AttentionShape& shape) override {
    return inner_bytes(shape) + static_cast<std::size_t>(rows(shape) * shape.head_dim) * sizeof(models::cuda::Half);
  }
  void attend_backward(const models::cuda::LibraryAttentionBack& of) override {
    ++host_devices().attentions;
    const auto& [sequences, positions, heads, kv_heads, head_dim] = of.shape;
    auto* const inner = static_cast<float*>(of.scratch);
    auto* const d_heads = reinterpret_cast<models::cuda::Half*>(static_cast<char*>(of.scratch) + inner_bytes(of.shape));
    device_->launch(models::cuda::AttendBf16Inner{{.rows = sequences * positions},
                                                  positions,
                                                  heads,
                                                  head_dim,
                                                  head_dim,
                                                  of.out,
                                                  of.d_out,
                                                  inner,
                                                  d_heads,
                                                  false});
    with_columns(of.shape, [&]<int columns>() {
      using Keys = models::cuda::AttendBf16BackwardKeys<columns>;
      using Rows = models::cuda::AttendBf16BackwardRows<columns>;
      device_->launch(Keys{{tiles<typename Keys::Base::Base>(of), d_heads, of.log_sums, inner}, of.d_k, of.d_v});
      device_->launch(Rows{{tiles<typename Rows::Base::Base>(of), d_heads, of.log_sums, inner}, of.d_q});
    });
  }

 private:
  static models::cuda::Index rows(const models::cuda::AttentionShape& shape) {
    return shape.sequences * shape.heads * shape.positions;
  }
  static std::size_t inner_bytes(const models::cuda::AttentionShape& shape) {
    return static_cast<std::size_t>(rows(shape)) * sizeof(float);
  }
  template <class Tiles>
  static Tiles tiles(const auto& of) {
    const auto& [sequences, positions, heads, kv_heads, head_dim] = of.shape;
    return {sequences, positions, heads, kv_heads, head_dim, head_dim, of.q, of.k, of.v};
  }
  template <class Body>
  static void with_columns(const models::cuda::AttentionShape& shape, Body body) {
    if (shape.head_dim <= 32) return body.template operator()<2>();
    if (shape.head_dim <= 64) return body.template operator()<4>();
    body.template operator()<8>();
  }

  models::cuda::ComputeDevice* device_;
};

}  // namespace kolo::testing

#pragma once

#include <initializer_list>
#include <memory>
#include <span>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"
#include "models/compute/cuda/arena.h"
#include "models/compute/cuda/device.h"
#include "models/compute/cuda/staging.h"
#include "models/compute/views.h"

namespace kolo::models::cuda {

inline Items items_of(const Tensor& tensor) {
  return {tensor.data, tensor.dtype};
}

/// Whether kernels may take eight numbers at once of these tensors' rows of `width`.
bool in_eights(Index width, std::initializer_list<Tensor> tensors);

/// Of memory of a device.
struct Release {
  ComputeDevice* device = nullptr;
  void operator()(void* memory) const noexcept { device->release(memory); }
};

/// Compute on a GPU: each operation is one kernel or a few, on the default stream. Scratch memory grows to the largest
/// size that was needed, then nothing is allocated any more.
class CudaCompute final : public Compute {
 public:
  explicit CudaCompute(int index);

  Device device() const override { return {DeviceKind::cuda, index_}; }
  DType kept(DType items) const override { return items == DType::bf16 ? items : DType::f32; }

  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void reserve(std::size_t bytes) override;
  std::size_t planned_bytes() const override;
  std::size_t scratch_bytes() const override;
  void copy(const Tensor& from, const Tensor& to) override;
  void copy_ahead(std::span<const Tensor> from, std::span<const Tensor> to, bool in_order) override;
  void read(const Tensor& from, void* to) override;
  std::unique_ptr<Reading> read_later(const Tensor& from) override;
  void fill(const Tensor& x, double value) override;
  void cast(const Tensor& from, const Tensor& to) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& sum) override;

  void allow_tf32(bool allowed) override { tf32_ = allowed; }
  void product(const Product& how, const Tensor& a, const Tensor& b, const Tensor& c) override;
  void bias_backward(const Tensor& y, const Tensor& dy, bool add, const Tensor& dbias) override;

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& x) override;
  void embed_backward(const Tensor& tokens, const Tensor& d, const Tensor& d_table) override;
  void rms_norm(const Tensor& x, const Tensor& more, const Tensor& sum, const Tensor& gain, double eps, const Tensor& h,
                const Tensor& inverse) override;
  void rms_norm_backward(const Tensor& x, const Tensor& gain, const Tensor& inverse, const Tensor& dh, const Tensor& d,
                         const Tensor& d_gain, const Tensor& d_items) override;
  void split_heads(const Heads& heads, const RotationTables& rotations, const Tensor& qkv,
                   const HeadTensors& to) override;
  void attend(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums) override;
  void attend_backward(const Heads& heads, const RotationTables& rotations, const HeadTensors& of, const Tensor& out,
                       const Tensor& log_sums, const Tensor& d_out, const Tensor& d_qkv) override;
  void swiglu(const Tensor& gate_up, const Tensor& s) override;
  void swiglu_backward(const Tensor& gate_up, const Tensor& ds, const Tensor& d_gate_up, const Tensor& s) override;
  void cross_entropy(const Tensor& logits, const Tensor& targets, float scale, const Tensor& d_logits,
                     const Tensor& sums) override;

  Shape choices(const ImageStage& stage, const Shape& images) const override;
  void convolve(const ImageStage& stage, const Tensor& x, const Tensor& y, const Tensor& chosen) override;
  void convolve_backward(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d, bool add,
                         const Tensor& dw, const Tensor& dbias, const Tensor& dx) override;
  void pool(const Pooling& how, const Tensor& x, const Tensor& y, const Tensor& chosen) override;
  void pool_backward(const Pooling& how, const Tensor& chosen, const Tensor& d, const Tensor& dx) override;
  Shape convolved(const ImageStage& stage, const Shape& images) const override;
  void batch_sums(const ImageStage& stage, const Tensor& x, const BatchStatistics& statistics) override;
  void batch_squares(const BatchStatistics& statistics) override;
  void batch_fold(bool training, double eps, const BatchStatistics& statistics, const BatchNormValues& values,
                  const Tensor& scale, const Tensor& shift) override;
  void batch_products(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                      const BatchStatistics& statistics, bool add, const Tensor& d_gain, const Tensor& d_bias) override;
  void batch_fold_backward(const BatchStatistics& statistics, const Tensor& gain, const Tensor& slope,
                           const Tensor& offset) override;

  void clip(double factor, double most, const Tensor& squares, const Tensor& scale) override;
  void sums_of_squares(std::span<const Tensor> tensors, const Tensor& sums) override;
  void sgd(const SgdStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) override;
  void adam(const AdamStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) override;

 private:
  bool sum_beside(PlainProduct product, const Tensor& a, const Product& how);
  BiasParts summed_parts(const Tensor& y, const Tensor& dy);
  void sum_parts(const float* parts, Index count, bool add, float* to, Index columns);
  Items output_of(const ImageStage& stage, const Tensor& x, bool first = false);
  const float* gradient_behind_pooling(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                                       const Items& output);
  void add_squares(const Pieces& pieces);
  AttentionLibrary* library_for(const Heads& heads, const HeadTensors& of);
  bool attend_backward_by_library(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums,
                                  const Tensor& d_out, const HeadTensors& gradients);
  void attend_backward_by_kernels(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums,
                                  const Tensor& d_out, const HeadTensors& gradients);

  int index_;
  bool tf32_ = false;
  std::unique_ptr<ComputeDevice> device_;
  std::unique_ptr<void, Release> reserved_;
  Arena arena_{0};  // of what is reserved
  Staging staging_;
  std::unique_ptr<Point> last_arrival_;  // when copy_ahead() was called last
  // What one operation needs; the next one in the stream's order may overwrite it.
  Buffer parts_, keys_, convolved_, gradient_;
  Buffer head_gradients_[3], inner_, d_heads_, scores_;  // of attention's pass back
};

}  // namespace kolo::models::cuda

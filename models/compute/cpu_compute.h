#pragma once

#include "models/compute/buffer.h"
#include "models/compute/compute.h"
#include "models/compute/image_pass.h"
#include "models/compute/image_plan.h"
#include "models/compute/kept_few.h"
#include "models/compute/views.h"

namespace kolo::models {

/// Compute on the calling thread of the host: products and convolutions by the library that is linked, all else by the
/// kernels for this processor.
class CpuCompute final : public Compute {
 public:
  Device device() const override { return {}; }

  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  std::size_t scratch_bytes() const override;
  void copy(const Tensor& from, const Tensor& to) override;
  void read(const Tensor& from, void* to) override;
  std::unique_ptr<Reading> read_later(const Tensor& from) override;
  void fill(const Tensor& x, double value) override;
  void cast(const Tensor& from, const Tensor& to) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& sum) override;

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
  const ImagePlan& plan_for(const ImageExtents& extents) const;

  Buffer attention_, head_gradients_;
  ImageScratch images_;
  mutable KeptFew<ImageExtents, ImagePlan> plans_{64};
};

}  // namespace kolo::models

#pragma once

#include "models/compute/buffer.h"
#include "models/compute/compute.h"

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

  Shape convolved(const Convolution& how, const Shape& x, const Shape& filters) const override;
  void convolve(const Convolution& how, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) override;
  void convolve_backward(const Convolution& how, const Tensor& x, const Tensor& w, const Tensor& dy, bool add,
                         const Tensor& dw, const Tensor& dbias, const Tensor& dx) override;
  void pool(std::int64_t window, Activation activation, const Tensor& x, const Tensor& scale, const Tensor& shift,
            const Tensor& pooled) override;
  void pool_backward(std::int64_t window, Activation activation, const Tensor& x, const Tensor& scale,
                     const Tensor& shift, const Tensor& d_pooled, const Tensor& d) override;
  void batch_sums(const Tensor& x, const BatchStatistics& statistics) override;
  void batch_squares(const Tensor& x, const BatchStatistics& statistics) override;
  void batch_fold(bool training, double eps, const BatchStatistics& statistics, const BatchNormValues& values,
                  const Tensor& scale, const Tensor& shift) override;
  void batch_products(const Tensor& x, const Tensor& d, const BatchStatistics& statistics, bool add,
                      const Tensor& d_gain, const Tensor& d_bias) override;
  void batch_backward(const Tensor& x, const BatchStatistics& statistics, const Tensor& gain, const Tensor& scale,
                      const Tensor& d) override;

  void sums_of_squares(std::span<const Tensor> tensors, const Tensor& sums) override;
  void sgd(const SgdStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) override;
  void adam(const AdamStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) override;

 private:
  Buffer attention_, head_gradients_, window_, filters_;
};

/// The elements of a tensor of the host; null for an empty one.
template <class T = float>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

/// Elements of one row of a tensor.
inline std::int64_t row_of(const Tensor& tensor) {
  return tensor.shape[tensor.shape.dims() - 1];
}
inline std::int64_t rows_of(const Tensor& tensor) {
  return tensor.elements() / row_of(tensor);
}

}  // namespace kolo::models

// A device for tests, in place of no_cuda_compute.cc: it computes as the host does, and nobody else may touch its
// memory. Whoever does so between two of its operations dies by a signal.

#include "tests/models/device/guarded_compute.h"

#include "models/compute/cpu_compute.h"
#include "models/util/error.h"
#include "tests/support/guarded_memory.h"

namespace kolo::models {
namespace {

testing::GuardedMemory& memory() {
  static testing::GuardedMemory all;
  return all;
}

using Open = testing::GuardedMemory::Open;

class GuardedCompute final : public Compute {
 public:
  explicit GuardedCompute(Device device) : device_(device) {}

  Device device() const override { return device_; }

  void* allocate(std::size_t bytes) override { return memory().allocate(bytes); }
  void release(void* taken) noexcept override { memory().release(taken); }
  std::size_t scratch_bytes() const override { return host_.scratch_bytes(); }

  void copy(const Tensor& from, const Tensor& to) override {
    const Open open(memory());
    host_.copy(from, to);
  }
  void read(const Tensor& from, void* to) override {
    check({from});
    const Open open(memory());
    host_.read(from, to);
  }
  std::unique_ptr<Reading> read_later(const Tensor& from) override {
    check({from});
    const Open open(memory());
    return host_.read_later(from);
  }
  void fill(const Tensor& x, double value) override {
    run({x}, [&] { host_.fill(x, value); });
  }
  void cast(const Tensor& from, const Tensor& to) override {
    run({from, to}, [&] { host_.cast(from, to); });
  }
  void add(const Tensor& a, const Tensor& b, const Tensor& sum) override {
    run({a, b, sum}, [&] { host_.add(a, b, sum); });
  }
  void product(const Product& how, const Tensor& a, const Tensor& b, const Tensor& c) override {
    run({how.bias, how.sums, a, b, c}, [&] { host_.product(how, a, b, c); });
  }
  void bias_backward(const Tensor& y, const Tensor& dy, bool add, const Tensor& dbias) override {
    run({y, dy, dbias}, [&] { host_.bias_backward(y, dy, add, dbias); });
  }
  void embed(const Tensor& table, const Tensor& tokens, const Tensor& x) override {
    run({table, tokens, x}, [&] { host_.embed(table, tokens, x); });
  }
  void embed_backward(const Tensor& tokens, const Tensor& d, const Tensor& d_table) override {
    run({tokens, d, d_table}, [&] { host_.embed_backward(tokens, d, d_table); });
  }
  void rms_norm(const Tensor& x, const Tensor& more, const Tensor& sum, const Tensor& gain, double eps, const Tensor& h,
                const Tensor& inverse) override {
    run({x, more, sum, gain, h, inverse}, [&] { host_.rms_norm(x, more, sum, gain, eps, h, inverse); });
  }
  void rms_norm_backward(const Tensor& x, const Tensor& gain, const Tensor& inverse, const Tensor& dh, const Tensor& d,
                         const Tensor& d_gain, const Tensor& d_items) override {
    run({x, gain, inverse, dh, d, d_gain, d_items},
        [&] { host_.rms_norm_backward(x, gain, inverse, dh, d, d_gain, d_items); });
  }
  void split_heads(const Heads& heads, const RotationTables& rotations, const Tensor& qkv,
                   const HeadTensors& to) override {
    run({rotations.cosine, rotations.sine, qkv, to.q, to.k, to.v},
        [&] { host_.split_heads(heads, rotations, qkv, to); });
  }
  void attend(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums) override {
    run({of.q, of.k, of.v, out, log_sums}, [&] { host_.attend(heads, of, out, log_sums); });
  }
  void attend_backward(const Heads& heads, const RotationTables& rotations, const HeadTensors& of, const Tensor& out,
                       const Tensor& log_sums, const Tensor& d_out, const Tensor& d_qkv) override {
    run({rotations.cosine, rotations.sine, of.q, of.k, of.v, out, log_sums, d_out, d_qkv},
        [&] { host_.attend_backward(heads, rotations, of, out, log_sums, d_out, d_qkv); });
  }
  void swiglu(const Tensor& gate_up, const Tensor& s) override {
    run({gate_up, s}, [&] { host_.swiglu(gate_up, s); });
  }
  void swiglu_backward(const Tensor& gate_up, const Tensor& ds, const Tensor& d_gate_up, const Tensor& s) override {
    run({gate_up, ds, d_gate_up, s}, [&] { host_.swiglu_backward(gate_up, ds, d_gate_up, s); });
  }
  void cross_entropy(const Tensor& logits, const Tensor& targets, float scale, const Tensor& d_logits,
                     const Tensor& sums) override {
    run({logits, targets, d_logits, sums}, [&] { host_.cross_entropy(logits, targets, scale, d_logits, sums); });
  }
  Shape choices(const ImageStage& stage, const Shape& images) const override { return host_.choices(stage, images); }
  void convolve(const ImageStage& stage, const Tensor& x, const Tensor& y, const Tensor& chosen) override {
    run(stage, {x, y, chosen}, [&] { host_.convolve(stage, x, y, chosen); });
  }
  void convolve_backward(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d, bool add,
                         const Tensor& dw, const Tensor& dbias, const Tensor& dx) override {
    run(stage, {x, chosen, d, dw, dbias, dx},
        [&] { host_.convolve_backward(stage, x, chosen, d, add, dw, dbias, dx); });
  }
  void pool(const Pooling& how, const Tensor& x, const Tensor& y, const Tensor& chosen) override {
    run({x, y, chosen}, [&] { host_.pool(how, x, y, chosen); });
  }
  void pool_backward(const Pooling& how, const Tensor& chosen, const Tensor& d, const Tensor& dx) override {
    run({chosen, d, dx}, [&] { host_.pool_backward(how, chosen, d, dx); });
  }
  Shape convolved(const ImageStage& stage, const Shape& images) const override {
    return host_.convolved(stage, images);
  }
  void batch_sums(const ImageStage& stage, const Tensor& x, const BatchStatistics& statistics) override {
    run(stage, {x, statistics.sums, statistics.own}, [&] { host_.batch_sums(stage, x, statistics); });
  }
  void batch_squares(const BatchStatistics& statistics) override {
    run({statistics.sums, statistics.own, statistics.squares}, [&] { host_.batch_squares(statistics); });
  }
  void batch_fold(bool training, double eps, const BatchStatistics& statistics, const BatchNormValues& values,
                  const Tensor& scale, const Tensor& shift) override {
    run({values.gain, values.bias, values.running_mean, values.running_variance, scale, shift},
        [&] { host_.batch_fold(training, eps, statistics, values, scale, shift); });
  }
  void batch_products(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                      const BatchStatistics& statistics, bool add, const Tensor& d_gain,
                      const Tensor& d_bias) override {
    run(stage, {x, chosen, d, d_gain, d_bias},
        [&] { host_.batch_products(stage, x, chosen, d, statistics, add, d_gain, d_bias); });
  }
  void batch_fold_backward(const BatchStatistics& statistics, const Tensor& gain, const Tensor& slope,
                           const Tensor& offset) override {
    run({statistics.products, gain, slope, offset},
        [&] { host_.batch_fold_backward(statistics, gain, slope, offset); });
  }
  void sums_of_squares(std::span<const Tensor> tensors, const Tensor& sums) override {
    check(tensors);
    run({sums}, [&] { host_.sums_of_squares(tensors, sums); });
  }
  void clip(double factor, double most, const Tensor& squares, const Tensor& scale) override {
    run({squares, scale}, [&] { host_.clip(factor, most, squares, scale); });
  }
  void sgd(const SgdStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) override {
    check(tensors);
    run({step.gradient_scale, squares}, [&] { host_.sgd(step, tensors, squares); });
  }
  void adam(const AdamStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) override {
    check(tensors);
    run({step.gradient_scale, squares}, [&] { host_.adam(step, tensors, squares); });
  }

 private:
  void check(std::span<const Tensor> tensors) const {
    for (const Tensor& tensor : tensors) {
      if (tensor.data != nullptr && tensor.device != device_) throw ModelError("a tensor is not on this device");
    }
  }
  void check(std::initializer_list<Tensor> tensors) const { check(std::span(tensors.begin(), tensors.size())); }
  void check(std::span<const UpdatedTensor> tensors) const {
    for (const UpdatedTensor& of : tensors) check({of.value, of.gradient, of.first, of.second});
  }

  template <class Operation>
  void run(std::initializer_list<Tensor> tensors, Operation operation) {
    check(tensors);
    const Open open(memory());
    operation();
  }

  template <class Operation>
  void run(const ImageStage& of, std::initializer_list<Tensor> tensors, Operation operation) {
    check({of.filters, of.bias, of.scale, of.shift, of.slope, of.offset, of.convolved});
    run(tensors, operation);
  }

  Device device_;
  CpuCompute host_;
};

}  // namespace

std::unique_ptr<Compute> make_cuda_compute(Device device) {
  return std::make_unique<GuardedCompute>(device);
}

}  // namespace kolo::models

namespace kolo::testing {

std::size_t guarded_bytes() {
  return models::memory().bytes();
}

}  // namespace kolo::testing

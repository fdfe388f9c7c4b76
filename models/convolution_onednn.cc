#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "models/convolution_products.h"
#include "models/error.h"
#include "models/onednn.h"

namespace kolo::models {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::desc floats(const memory::dims& extents, Tag tag) {
  return {extents, memory::data_type::f32, tag};
}

/// The primitives of one shape, with the memory they are run on. oneDNN wants filters and their gradient in an order of
/// its own; outputs are in blocks of 16 filters.
class Convolution {
 public:
  explicit Convolution(const ConvolutionShape& shape)
      : stream_(onednn_cpu()),
        x_(floats({shape.examples, shape.channels, shape.height, shape.width}, Tag::nchw), onednn_cpu(), nullptr),
        w_(floats({shape.filters, shape.channels, 3, 3}, Tag::oihw), onednn_cpu(), nullptr),
        bias_(floats({shape.filters}, Tag::a), onednn_cpu(), nullptr),
        y_(floats({shape.examples, shape.filters, shape.rows(), shape.columns()}, Tag::nChw16c), onednn_cpu(), nullptr),
        gradient_(static_cast<std::size_t>(shape.filters * (shape.patch() + 1))) {
    const memory::dims steps{1, 1}, none{0, 0};
    const memory::desc any_order = floats({shape.filters, shape.channels, 3, 3}, Tag::any);
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, x_.get_desc(), any_order,
         bias_.get_desc(), y_.get_desc(), steps, none, none},
        onednn_cpu());
    const dnnl::convolution_backward_weights::primitive_desc backward(
        {dnnl::algorithm::convolution_direct, x_.get_desc(), any_order, bias_.get_desc(), y_.get_desc(), steps, none,
         none},
        onednn_cpu(), forward);
    forward_ = dnnl::convolution_forward(forward);
    backward_ = dnnl::convolution_backward_weights(backward);
    ordered_w_ = memory(forward.weights_desc(), onednn_cpu());
    ordered_dw_ = memory(backward.diff_weights_desc(), onednn_cpu());
  }

  void run(const float* x, const float* w, const float* bias, float* y) {
    set(x_, x);
    set(w_, w);
    set(bias_, bias);
    set(y_, y);
    dnnl::reorder(w_, ordered_w_).execute(stream_, w_, ordered_w_);
    forward_.execute(stream_,
                     {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, ordered_w_}, {DNNL_ARG_BIAS, bias_}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }

  void run_backward(const float* x, const float* dy, bool add, float* dw, float* dbias) {
    const std::size_t filters = static_cast<std::size_t>(bias_.get_desc().dims()[0]);
    const std::size_t weights = gradient_.size() - filters;
    set(x_, x);
    set(y_, dy);
    set(w_, gradient_.data());
    set(bias_, gradient_.data() + weights);
    backward_.execute(stream_, {{DNNL_ARG_SRC, x_},
                                {DNNL_ARG_DIFF_DST, y_},
                                {DNNL_ARG_DIFF_WEIGHTS, ordered_dw_},
                                {DNNL_ARG_DIFF_BIAS, bias_}});
    dnnl::reorder(ordered_dw_, w_).execute(stream_, ordered_dw_, w_);
    stream_.wait();
    for (std::size_t i = 0; i < weights; ++i) dw[i] = gradient_[i] + (add ? dw[i] : 0.0f);
    for (std::size_t i = 0; i < filters; ++i) dbias[i] = gradient_[weights + i] + (add ? dbias[i] : 0.0f);
  }

 private:
  static void set(memory& memory, const float* data) { memory.set_data_handle(const_cast<float*>(data)); }

  dnnl::stream stream_;
  memory x_, w_, bias_, y_, ordered_w_, ordered_dw_;
  dnnl::convolution_forward forward_;
  dnnl::convolution_backward_weights backward_;
  std::vector<float> gradient_;  // of weights, then of biases
};

/// Kept per thread: a primitive must not run on two threads at a time.
template <class Run>
void with_convolution(const ConvolutionShape& shape, Run run) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  thread_local std::map<Key, Convolution> convolutions;
  const OneThread one_thread;
  try {
    const Key key{shape.examples, shape.channels, shape.height, shape.width, shape.filters};
    run(convolutions.try_emplace(key, shape).first->second);
  } catch (const dnnl::error& error) {
    throw ModelError(std::string("a convolution failed (oneDNN: ") + error.what() +
                     "); build with -DKOLO_GEMM=openblas or plain");
  }
}

}  // namespace

/// Of other numbers of filters oneDNN 2.6 has reference code only, which takes twenty times as long as products do.
std::int64_t filter_block(std::int64_t filters) {
  return filters % 16 == 0 ? 16 : filters;
}

void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y) {
  if (filter_block(shape.filters) != 16) return convolve_by_products(shape, x, w, bias, y);
  with_convolution(shape, [&](Convolution& convolution) { convolution.run(x, w, bias, y); });
}

void convolve_backward(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                       float* dbias) {
  if (filter_block(shape.filters) != 16) return convolve_backward_by_products(shape, x, dy, add, dw, dbias);
  with_convolution(shape, [&](Convolution& convolution) { convolution.run_backward(x, dy, add, dw, dbias); });
}

}  // namespace kolo::models

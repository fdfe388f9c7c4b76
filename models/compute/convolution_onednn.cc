#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/compute/convolution.h"
#include "models/compute/kept_few.h"
#include "models/compute/onednn.h"
#include "models/util/error.h"
#include "models/util/headroom.h"

namespace kolo::models {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::desc floats(const memory::dims& extents, Tag tag) {
  return {extents, memory::data_type::f32, tag};
}

/// What oneDNN would do for a shape.
struct Plans {
  dnnl::convolution_forward::primitive_desc forward;
  dnnl::convolution_backward_weights::primitive_desc backward;
};

struct Descriptions {
  memory::desc x, w, bias, y;
};

Descriptions descriptions(const ConvolutionShape& shape, std::int64_t block) {
  const Tag outputs = block == 16 ? Tag::nChw16c : Tag::nChw8c;
  return {.x = floats({shape.examples, shape.channels, shape.height, shape.width}, Tag::nchw),
          .w = floats({shape.filters, shape.channels, shape.kernel, shape.kernel}, Tag::oihw),
          .bias = floats({shape.filters}, Tag::a),
          .y = floats({shape.examples, shape.filters, shape.rows(), shape.columns()}, outputs)};
}

Plans plans(const ConvolutionShape& shape, std::int64_t block) {
  const Descriptions of = descriptions(shape, block);
  const memory::dims steps{shape.stride, shape.stride}, padding{shape.padding, shape.padding};
  const memory::desc any_order = floats({shape.filters, shape.channels, shape.kernel, shape.kernel}, Tag::any);
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, of.x, any_order, of.bias, of.y, steps,
       padding, padding},
      onednn_cpu());
  return {forward,
          {{dnnl::algorithm::convolution_direct, of.x, any_order, of.bias, of.y, steps, padding, padding},
           onednn_cpu(),
           forward}};
}

/// Whether oneDNN has machine code for this; else it runs a reference, which takes a hundred times as long.
bool is_fast(const ConvolutionShape& shape, std::int64_t block) {
  if (shape.filters % block != 0) return false;
  try {
    const Plans both = plans(shape, block);
    const auto generated = [](const char* name) {
      return std::string_view(name).find("jit") != std::string_view::npos;
    };
    return generated(both.forward.impl_info_str()) && generated(both.backward.impl_info_str());
  } catch (const dnnl::error&) {
    return false;
  }
}

using ConvolutionKey = std::array<std::int64_t, 8>;

ConvolutionKey key_of(const ConvolutionShape& shape) {
  return {shape.examples, shape.channels, shape.height, shape.width,
          shape.filters,  shape.kernel,   shape.stride, shape.padding};
}

/// The filters in a block that suits oneDNN on this processor; none where products are faster.
std::optional<std::int64_t> onednn_block(ConvolutionShape shape) {
  thread_local KeptFew<ConvolutionKey, std::optional<std::int64_t>> known(64);
  shape.examples = 1;  // all batches must agree
  return known.at(key_of(shape), [&]() -> std::optional<std::int64_t> {
    const OneThread one_thread;
    check_headroom("the code of a convolution");  // oneDNN 2.6 crashes without, or says that it has no code
    for (const std::int64_t block : {16, 8}) {
      if (is_fast(shape, block)) return block;
    }
    return std::nullopt;
  });
}

/// The primitives of one shape, with the memory they are run on. oneDNN wants filters and their gradient in an order of
/// its own.
class Primitives {
 public:
  Primitives(const ConvolutionShape& shape, std::int64_t block)
      : stream_(onednn_cpu()), gradient_(static_cast<std::size_t>(shape.filters * (shape.patch() + 1))) {
    check_headroom("the code of a convolution");
    const Descriptions of = descriptions(shape, block);
    x_ = memory(of.x, onednn_cpu(), nullptr);
    w_ = memory(of.w, onednn_cpu(), nullptr);
    bias_ = memory(of.bias, onednn_cpu(), nullptr);
    y_ = memory(of.y, onednn_cpu(), nullptr);
    const Plans both = plans(shape, block);
    forward_ = dnnl::convolution_forward(both.forward);
    backward_ = dnnl::convolution_backward_weights(both.backward);
    ordered_w_ = memory(both.forward.weights_desc(), onednn_cpu());
    ordered_dw_ = memory(both.backward.diff_weights_desc(), onednn_cpu());
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

/// Kept per thread: a primitive must not run on two threads at a time. Returns whether oneDNN has run.
template <class Run>
bool with_convolution(const ConvolutionShape& shape, Run run) {
  thread_local KeptFew<ConvolutionKey, Primitives> convolutions(16);
  const auto block = onednn_block(shape);
  if (!block) return false;
  const OneThread one_thread;
  try {
    run(convolutions.at(key_of(shape), [&] { return Primitives(shape, *block); }));
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) refuse_memory("a convolution");
    throw ModelError(std::string("a convolution failed (oneDNN: ") + error.what() +
                     "); build with -DKOLO_GEMM=openblas or plain");
  }
  return true;
}

}  // namespace

std::int64_t filter_block(const ConvolutionShape& shape) {
  return onednn_block(shape).value_or(shape.filters);
}

void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y) {
  const bool done = with_convolution(shape, [&](Primitives& convolution) { convolution.run(x, w, bias, y); });
  if (!done) convolve_by_products(shape, x, w, bias, y);
}

void convolve_backward(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                       float* dbias) {
  const bool done =
      with_convolution(shape, [&](Primitives& convolution) { convolution.run_backward(x, dy, add, dw, dbias); });
  if (!done) convolve_backward_by_products(shape, x, dy, add, dw, dbias);
}

}  // namespace kolo::models

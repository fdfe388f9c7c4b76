#include <algorithm>
#include <cmath>

#include "models/compute/convolution.h"
#include "models/compute/cpu_compute.h"
#include "models/compute/cpu_items.h"

namespace kolo::models {
namespace {

ConvolutionShape extents_of(const Convolution& how, const Shape& x, const Shape& filters) {
  return {.examples = x[0],
          .channels = x[1],
          .height = x[2],
          .width = x[3],
          .filters = filters[0],
          .kernel = filters[2],
          .stride = how.stride,
          .padding = how.padding};
}

/// Images in blocks: [examples, blocks, rows, columns, block].
struct Blocks {
  explicit Blocks(const Tensor& x)
      : examples(x.shape[0]), channels(x.shape[1] * x.shape[4]), places(x.shape[2] * x.shape[3]), block(x.shape[4]) {}

  /// Calls body(first channel, offset of the block's numbers) for each block of each example.
  template <class Body>
  void each(Body body) const {
    std::int64_t at = 0;
    for (std::int64_t example = 0; example < examples; ++example) {
      for (std::int64_t channel = 0; channel < channels; channel += block, at += places * block) body(channel, at);
    }
  }

  std::int64_t examples, channels, places, block;
};

PoolView pool_view(std::int64_t window, Activation activation, const Tensor& x) {
  return {.window = window,
          .rows = x.shape[2],
          .columns = x.shape[3],
          .block = x.shape[4],
          .floor = activation == Activation::relu ? 0.0f : -INFINITY};
}

/// The view of one block of one image.
PoolView at_block(PoolView view, const Tensor& x, const Tensor& scale, const Tensor& shift, std::int64_t channel,
                  std::int64_t at) {
  view.x = data_of(x) + at;
  if (scale.data != nullptr) {
    view.scale = data_of(scale) + channel;
    view.shift = data_of(shift) + channel;
  }
  return view;
}

const Kernels& f32_kernels() {
  return kernels(Precision::f32);
}

}  // namespace

Shape CpuCompute::convolved(const Convolution& how, const Shape& x, const Shape& filters) const {
  const ConvolutionShape extents = extents_of(how, x, filters);
  const std::int64_t block = filter_block(extents);
  return {extents.examples, extents.filters / block, extents.rows(), extents.columns(), block};
}

void CpuCompute::convolve(const Convolution& how, const Tensor& x, const Tensor& w, const Tensor& bias,
                          const Tensor& y) {
  const ConvolutionShape extents = extents_of(how, x.shape, w.shape);
  Tensor offset = bias;
  if (offset.data == nullptr) {
    offset = filters_.make(*this, DType::f32, {extents.filters}, "biases of 0");
    fill(offset, 0);
  }
  models::convolve(extents, data_of(x), data_of(w), data_of(offset), data_of(y));
}

void CpuCompute::convolve_backward(const Convolution& how, const Tensor& x, const Tensor& w, const Tensor& dy, bool add,
                                   const Tensor& dw, const Tensor& dbias, const Tensor& dx) {
  const ConvolutionShape extents = extents_of(how, x.shape, w.shape);
  const Tensor offset =
      dbias.data == nullptr ? filters_.make(*this, DType::f32, {extents.filters}, "biases of 0") : dbias;
  models::convolve_backward(extents, data_of(x), data_of(dy), add, data_of(dw), data_of(offset));
  if (dx.data != nullptr) convolve_input_backward(extents, data_of(w), data_of(dy), data_of(dx));
}

void CpuCompute::pool(std::int64_t window, Activation activation, const Tensor& x, const Tensor& scale,
                      const Tensor& shift, const Tensor& pooled) {
  const Blocks blocks(x);
  const PoolView view = pool_view(window, activation, x);
  const std::int64_t places = pooled.shape[2] * pooled.shape[3], block = blocks.block;
  float* const one = data_of(window_.make(*this, DType::f32, {places, blocks.block}, "one image's pooling"));
  float* out = data_of(pooled);
  blocks.each([&](std::int64_t channel, std::int64_t at) {
    f32_kernels().pool(at_block(view, x, scale, shift, channel, at), one);
    for (std::int64_t i = 0; i < block; ++i) {
      float* const plane = out + (channel + i) * places;
      for (std::int64_t place = 0; place < places; ++place) plane[place] = one[place * block + i];
    }
    if (channel + block == blocks.channels) out += blocks.channels * places;
  });
}

void CpuCompute::pool_backward(std::int64_t window, Activation activation, const Tensor& x, const Tensor& scale,
                               const Tensor& shift, const Tensor& d_pooled, const Tensor& d) {
  const Blocks blocks(x);
  const PoolView view = pool_view(window, activation, x);
  const std::int64_t places = d_pooled.shape[2] * d_pooled.shape[3], block = blocks.block;
  float* const one = data_of(window_.make(*this, DType::f32, {places, blocks.block}, "one image's pooling"));
  const float* from = data_of(d_pooled);
  blocks.each([&](std::int64_t channel, std::int64_t at) {
    for (std::int64_t i = 0; i < block; ++i) {
      const float* const plane = from + (channel + i) * places;
      for (std::int64_t place = 0; place < places; ++place) one[place * block + i] = plane[place];
    }
    if (channel + block == blocks.channels) from += blocks.channels * places;
    f32_kernels().pool_backward(at_block(view, x, scale, shift, channel, at), one, data_of(d) + at);
  });
}

void CpuCompute::batch_sums(const Tensor& x, const BatchStatistics& statistics) {
  const Blocks blocks(x);
  double *const sums = data_of<double>(statistics.sums), *const ignored = data_of<double>(statistics.squares);
  fill(statistics.sums, 0);
  fill(statistics.squares, 0);
  blocks.each([&](std::int64_t channel, std::int64_t at) {
    f32_kernels().column_sums(blocks.places, blocks.block, data_of(x) + at, nullptr, sums + channel, ignored + channel);
  });
  sums[blocks.channels] = static_cast<double>(blocks.examples * blocks.places);
}

namespace {

/// Numbers of each channel, at least 1.
double count_of(const BatchStatistics& statistics) {
  return std::max(data_of<double>(statistics.sums)[statistics.sums.elements() - 1], 1.0);
}

}  // namespace

// A second pass: the sum of squared differences to the mean is free of cancellation.
void CpuCompute::batch_squares(const Tensor& x, const BatchStatistics& statistics) {
  const Blocks blocks(x);
  float* const mean = data_of(statistics.mean);
  double *const sums = data_of<double>(statistics.sums), *const squares = data_of<double>(statistics.squares);
  double* const ignored = data_of<double>(statistics.products);
  const double count = count_of(statistics);
  for (std::int64_t i = 0; i < blocks.channels; ++i) mean[i] = static_cast<float>(sums[i] / count);
  fill(statistics.squares, 0);
  fill(statistics.products, 0);
  blocks.each([&](std::int64_t channel, std::int64_t at) {
    f32_kernels().column_sums(blocks.places, blocks.block, data_of(x) + at, mean + channel, ignored + channel,
                              squares + channel);
  });
}

void CpuCompute::batch_fold(bool training, double eps, const BatchStatistics& statistics, const BatchNormValues& values,
                            const Tensor& scale, const Tensor& shift) {
  const std::int64_t channels = scale.elements();
  float *const mean = data_of(statistics.mean), *const running_mean = data_of(values.running_mean);
  float* const running_variance = data_of(values.running_variance);
  double *const inverse = data_of<double>(statistics.inverse), *const squares = data_of<double>(statistics.squares);
  const bool none = training && data_of<double>(statistics.sums)[channels] == 0;
  const double count = training ? count_of(statistics) : 1;
  constexpr float step = 0.1f;
  for (std::int64_t i = 0; i < channels; ++i) {
    if (training && !none) {
      inverse[i] = 1 / std::sqrt(squares[i] / count + eps);
      const auto of_sample = static_cast<float>(squares[i] / std::max(count - 1, 1.0));
      running_mean[i] += step * (mean[i] - running_mean[i]);
      running_variance[i] += step * (of_sample - running_variance[i]);
    } else {
      mean[i] = running_mean[i];
      inverse[i] = 1 / std::sqrt(static_cast<double>(running_variance[i]) + eps);
    }
    const double factor = data_of(values.gain)[i] * inverse[i];
    data_of(scale)[i] = static_cast<float>(factor);
    data_of(shift)[i] = static_cast<float>(data_of(values.bias)[i] - mean[i] * factor);
  }
}

void CpuCompute::batch_products(const Tensor& x, const Tensor& d, const BatchStatistics& statistics, bool add,
                                const Tensor& d_gain, const Tensor& d_bias) {
  const Blocks blocks(x);
  double* const sums = data_of<double>(statistics.products);
  double *const products = sums + blocks.channels, *const inverse = data_of<double>(statistics.inverse);
  fill(statistics.products, 0);
  blocks.each([&](std::int64_t channel, std::int64_t at) {
    f32_kernels().column_products(blocks.places, blocks.block, data_of(d) + at, data_of(x) + at,
                                  data_of(statistics.mean) + channel, sums + channel, products + channel);
  });
  if (d_gain.data == nullptr) return;
  float *const of_gain = data_of(d_gain), *const of_bias = data_of(d_bias);
  for (std::int64_t i = 0; i < blocks.channels; ++i) {
    of_bias[i] = static_cast<float>(sums[i]) + (add ? of_bias[i] : 0.0f);
    of_gain[i] = static_cast<float>(products[i] * inverse[i]) + (add ? of_gain[i] : 0.0f);
  }
}

// With r = 1/deviation, n numbers of all ranks and x' = x - mean: dx = gain·r·(d - Σd/n - x'·r²·Σ(d·x')/n).
void CpuCompute::batch_backward(const Tensor& x, const BatchStatistics& statistics, const Tensor& gain,
                                const Tensor& scale, const Tensor& d) {
  const Blocks blocks(x);
  const std::int64_t channels = blocks.channels;
  const double *const sums = data_of<double>(statistics.products), *const products = sums + channels;
  const double count = count_of(statistics);
  float* const of_x = data_of(filters_.make(*this, DType::f32, {2 * channels}, "a norm's factors"));
  float* const constant = of_x + channels;
  for (std::int64_t i = 0; i < channels; ++i) {
    const double r = data_of<double>(statistics.inverse)[i], of_gain = data_of(gain)[i];
    const double slope = of_gain * r * r * r * products[i] / count;
    of_x[i] = static_cast<float>(-slope);
    constant[i] = static_cast<float>(data_of(statistics.mean)[i] * slope - of_gain * r * sums[i] / count);
  }
  blocks.each([&](std::int64_t channel, std::int64_t at) {
    f32_kernels().combine_columns(blocks.places, blocks.block, data_of(scale) + channel, data_of(x) + at,
                                  of_x + channel, constant + channel, data_of(d) + at);
  });
}

}  // namespace kolo::models

#include <cmath>

#include "models/compute/cuda/cuda_compute.h"

namespace kolo::models::cuda {
namespace {

ConvolutionExtents extents_of(const ImageStage& stage, const Shape& images) {
  const Index kernel = stage.filters.shape[2];
  const auto behind = [&](Index extent) {
    return extent_behind(extent, kernel, stage.convolution.stride, stage.convolution.padding);
  };
  return {.examples = images[0],
          .channels = images[1],
          .height = images[2],
          .width = images[3],
          .filters = stage.filters.shape[0],
          .kernel = kernel,
          .stride = stage.convolution.stride,
          .padding = stage.convolution.padding,
          .rows = behind(images[2]),
          .columns = behind(images[3])};
}

/// Of planes [examples, channels, rows, columns].
PoolExtents extents_of(const Pooling& how, Index channels, Index rows, Index columns, const Tensor& chosen) {
  PoolExtents extents{.channels = channels, .rows = rows, .columns = columns};
  extents.pooled_rows = extent_behind(rows, how.window, how.step(), how.padding);
  extents.pooled_columns = extent_behind(columns, how.window, how.step(), how.padding);
  extents.window = how.window;
  extents.step = how.step();
  extents.padding = how.padding;
  extents.chosen = data_of<std::uint16_t>(chosen);
  return extents;
}

NormKernel norm_of(const BatchStatistics& statistics, Index channels) {
  return {{.count = channels},
          data_of<double>(statistics.sums),
          data_of<double>(statistics.squares),
          data_of<double>(statistics.own),
          data_of<double>(statistics.inverse),
          data_of<double>(statistics.products),
          data_of(statistics.mean)};
}

}  // namespace

Shape CudaCompute::choices(const ImageStage& stage, const Shape& images) const {
  if (stage.filters.data != nullptr) return stage.output(images);
  const PoolExtents of = extents_of(stage.pooling, images[1], images[2], images[3], {});
  return {images[0], images[1], of.pooled_rows, of.pooled_columns};
}

Shape CudaCompute::convolved(const ImageStage& stage, const Shape& images) const {
  const ConvolutionExtents of = extents_of(stage, images);
  return {of.examples, of.filters, of.rows, of.columns};
}

/// What a stage convolves, [examples, filters, rows, columns]: what it keeps, unless this is the `first` use of it.
Items CudaCompute::output_of(const ImageStage& stage, const Tensor& x, bool first) {
  if (stage.convolved.data != nullptr && !first) return items_of(stage.convolved);
  const ConvolutionExtents of = extents_of(stage, x.shape);
  const Items y = items_of(stage.convolved.data != nullptr
                               ? stage.convolved
                               : convolved_.make(*this, DType::f32, convolved(stage, x.shape), "convolutions"));
  device_->launch(
      Convolve{{.m = of.filters, .n = of.places()}, of, items_of(x), y, data_of(stage.filters), data_of(stage.bias)});
  return y;
}

void CudaCompute::convolve(const ImageStage& stage, const Tensor& x, const Tensor& y, const Tensor& chosen) {
  const ConvolutionExtents of = extents_of(stage, x.shape);
  PoolExtents pooling = extents_of(stage.pooling, of.filters, of.rows, of.columns, chosen);
  pooling.count = y.elements();
  const float floor = stage.activation == Activation::relu ? 0 : -INFINITY;
  device_->launch(Pool{pooling, output_of(stage, x), items_of(y), data_of(stage.scale), data_of(stage.shift), floor});
}

/// The gradient of what a stage convolves; or of its norm's output, where the stage has no slope. `output` is what is
/// convolved, needed with a slope.
const float* CudaCompute::gradient_behind_pooling(const ImageStage& stage, const Tensor& x, const Tensor& chosen,
                                                  const Tensor& d, const Items& output) {
  const ConvolutionExtents of = extents_of(stage, x.shape);
  PoolExtents pooling = extents_of(stage.pooling, of.filters, of.rows, of.columns, chosen);
  pooling.count = of.filters * of.places();
  const Tensor dy = gradient_.make(*this, DType::f32, {pooling.count}, "gradients of what is convolved");
  device_->launch(PoolBackward{pooling, items_of(d), output, items_of(dy), data_of(stage.scale), data_of(stage.slope),
                               data_of(stage.offset)});
  return data_of(dy);
}

void CudaCompute::convolve_backward(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                                    bool add, const Tensor& dw, const Tensor& dbias, const Tensor& dx) {
  const ConvolutionExtents of = extents_of(stage, x.shape);
  const Items output = stage.slope.data != nullptr ? output_of(stage, x) : Items{};
  const float* const dy = gradient_behind_pooling(stage, x, chosen, d, output);
  const Index row = of.taps() + (dbias.data != nullptr ? 1 : 0);
  ConvolveBackwardFilters filters{{.m = of.filters, .n = row}, of, items_of(x), dy};
  filters.parts = data_of(parts_.make(*this, DType::f32, {filters.chunks(), of.filters, row}, "gradients of filters"));
  device_->launch(filters);
  device_->launch(SumParts{of.filters * row, filters.parts, filters.chunks(), add, data_of(dw), data_of(dbias), row});
  if (dx.data == nullptr) return;
  device_->launch(ConvolveBackwardImages{
      {.m = of.channels, .n = of.examples * of.height * of.width}, of, data_of(stage.filters), dy, items_of(dx)});
}

void CudaCompute::pool(const Pooling& how, const Tensor& x, const Tensor& y, const Tensor& chosen) {
  PoolExtents pooling = extents_of(how, x.shape[1], x.shape[2], x.shape[3], chosen);
  pooling.count = y.elements();
  device_->launch(Pool{pooling, items_of(x), items_of(y), nullptr, nullptr, -INFINITY});
}

void CudaCompute::pool_backward(const Pooling& how, const Tensor& chosen, const Tensor& d, const Tensor& dx) {
  PoolExtents pooling = extents_of(how, dx.shape[1], dx.shape[2], dx.shape[3], chosen);
  pooling.count = dx.elements();
  device_->launch(PoolBackward{pooling, items_of(d), {}, items_of(dx), nullptr, nullptr, nullptr});
}

void CudaCompute::batch_sums(const ImageStage& stage, const Tensor& x, const BatchStatistics& statistics) {
  ChannelSums sums{{.channels = stage.filters.shape[0]}};
  if (x.shape[0] > 0) {
    sums.examples = x.shape[0];
    sums.plane = extents_of(stage, x.shape).plane();
    sums.x = output_of(stage, x, true);
  }
  sums.sums = data_of<double>(statistics.sums);
  sums.own = data_of<double>(statistics.own);
  device_->launch(sums);
}

void CudaCompute::batch_squares(const BatchStatistics& statistics) {
  device_->launch(NormSquares{norm_of(statistics, statistics.squares.elements())});
}

void CudaCompute::batch_fold(bool training, double eps, const BatchStatistics& statistics,
                             const BatchNormValues& values, const Tensor& scale, const Tensor& shift) {
  device_->launch(NormFold{norm_of(statistics, scale.elements()), training, eps, data_of(values.gain),
                           data_of(values.bias), data_of(values.running_mean), data_of(values.running_variance),
                           data_of(scale), data_of(shift)});
}

void CudaCompute::batch_products(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                                 const BatchStatistics& statistics, bool add, const Tensor& d_gain,
                                 const Tensor& d_bias) {
  const ConvolutionExtents of = extents_of(stage, x.shape);
  ImageStage without_norm = stage;
  without_norm.slope = {};
  const float* const gradient = gradient_behind_pooling(without_norm, x, chosen, d, {});
  device_->launch(ChannelProducts{{.examples = of.examples, .channels = of.filters, .plane = of.plane()},
                                  output_of(stage, x),
                                  gradient,
                                  data_of(statistics.mean),
                                  data_of<double>(statistics.inverse),
                                  data_of<double>(statistics.products),
                                  add,
                                  data_of(d_gain),
                                  data_of(d_bias)});
}

void CudaCompute::batch_fold_backward(const BatchStatistics& statistics, const Tensor& gain, const Tensor& slope,
                                      const Tensor& offset) {
  device_->launch(
      NormFoldBackward{norm_of(statistics, gain.elements()), data_of(gain), data_of(slope), data_of(offset)});
}

}  // namespace kolo::models::cuda

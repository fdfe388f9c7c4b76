// The norm of a stage of images. With few taps, what is convolved is computed again in each pass over it, image by
// image: that takes less time than to write it and read it again.

#include <algorithm>
#include <cmath>

#include "models/compute/cpu_compute.h"
#include "models/compute/denormals.h"
#include "models/compute/image_pass.h"

namespace kolo::models {
namespace {

std::int64_t channels_of(const BatchStatistics& statistics) {
  return statistics.squares.elements();
}

/// Numbers of each channel on all ranks, at least 1.
double count_of(const BatchStatistics& statistics) {
  return std::max(data_of<double>(statistics.sums)[channels_of(statistics)], 1.0);
}

}  // namespace

Shape CpuCompute::convolved(const ImageStage& stage, const Shape& images) const {
  constexpr std::int64_t few_taps = 12;
  if (images[0] == 0 || stage.filters.elements() / stage.filters.shape[0] <= few_taps) return {0};
  return {images[0], ConvolutionPass::padded(stage.filters.shape[0]),
          plan_for(ImageExtents(stage, images)).filter_floats()};
}

// Image by image: the mean, then the squares of differences to it while the image is in the cache. Those of several
// images are put together without cancellation (Chan, Golub & LeVeque 1979).
void CpuCompute::batch_sums(const ImageStage& stage, const Tensor& x, const BatchStatistics& statistics) {
  const DenormalsAreZero in_here;
  const std::int64_t channels = channels_of(statistics);
  double *const sums = data_of<double>(statistics.sums), *const own = data_of<double>(statistics.own);
  double *const means = own, *const squares = own + channels;
  fill(statistics.own, 0);
  double count = 0;
  if (x.shape[0] > 0) {
    const ImagePlan& plan = plan_for(ImageExtents(stage, x.shape));
    ConvolutionPass convolution(*this, images_, plan, stage, true);
    const auto places = static_cast<double>(plan.rows() * plan.columns());
    for (std::int64_t example = 0; example < x.shape[0]; ++example, count += places) {
      convolution.load(x, example);
      convolution.each_output([&](std::int64_t filter, const float* planes) {
        float sum = 0, square = 0;
        image_kernels().plane_sums(plan.filter_floats(), planes, plan.inside(), 0, &sum, &square);
        const auto centre = static_cast<float>(sum / places);
        image_kernels().plane_sums(plan.filter_floats(), planes, plan.inside(), centre, &sum, &square);
        const double rest = static_cast<double>(sum) / places, apart = centre + rest - means[filter];
        squares[filter] += square - rest * rest * places + apart * apart * places * count / (count + places);
        means[filter] += apart * places / (count + places);
      });
    }
  }
  for (std::int64_t i = 0; i < channels; ++i) sums[i] = means[i] * count;
  sums[channels] = own[2 * channels] = count;
}

void CpuCompute::batch_squares(const BatchStatistics& statistics) {
  const DenormalsAreZero in_here;
  const std::int64_t channels = channels_of(statistics);
  const double *const sums = data_of<double>(statistics.sums), *const own = data_of<double>(statistics.own);
  for (std::int64_t i = 0; i < channels; ++i) {
    const auto mean = static_cast<float>(sums[i] / count_of(statistics));
    const double apart = own[i] - mean;
    data_of(statistics.mean)[i] = mean;
    data_of<double>(statistics.squares)[i] = own[channels + i] + apart * apart * own[2 * channels];
  }
}

void CpuCompute::batch_fold(bool training, double eps, const BatchStatistics& statistics, const BatchNormValues& values,
                            const Tensor& scale, const Tensor& shift) {
  const DenormalsAreZero in_here;
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

void CpuCompute::batch_products(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                                const BatchStatistics& statistics, bool add, const Tensor& d_gain,
                                const Tensor& d_bias) {
  const DenormalsAreZero in_here;
  const ImagePlan& plan = plan_for(ImageExtents(stage, x.shape));
  const std::int64_t channels = channels_of(statistics);
  ConvolutionPass convolution(*this, images_, plan, stage);
  PoolPass pooling(plan, stage.activation);
  double *const sums = data_of<double>(statistics.products), *const products = sums + channels;
  float* const gradient = zeros(*this, images_.gradient, plan.filter_floats());
  fill(statistics.products, 0);
  for (std::int64_t example = 0; example < x.shape[0]; ++example) {
    convolution.load(x, example);
    convolution.each_output([&](std::int64_t filter, const float* planes) {
      const std::int64_t plane = example * channels + filter;
      sums[filter] += static_cast<double>(pooling.backward(
          data_of(d) + plane * plan.pooled(), data_of<std::uint16_t>(chosen) + plane * plan.choices(), gradient));
      products[filter] += static_cast<double>(image_kernels().plane_products(
          plan.filter_floats(), gradient, planes, plan.inside(), data_of(statistics.mean)[filter]));
    });
  }
  float *const of_gain = data_of(d_gain), *const of_bias = data_of(d_bias);
  for (std::int64_t i = 0; i < channels; ++i) {
    of_bias[i] = static_cast<float>(sums[i]) + (add ? of_bias[i] : 0.0f);
    of_gain[i] = static_cast<float>(products[i] * data_of<double>(statistics.inverse)[i]) + (add ? of_gain[i] : 0.0f);
  }
}

// With r = 1/deviation, n numbers of all ranks and x' = x - mean: dx = gain·r·(d - Σd/n - x'·r²·Σ(d·x')/n).
void CpuCompute::batch_fold_backward(const BatchStatistics& statistics, const Tensor& gain, const Tensor& slope,
                                     const Tensor& offset) {
  const DenormalsAreZero in_here;
  const std::int64_t channels = channels_of(statistics);
  const double *const sums = data_of<double>(statistics.products), *const products = sums + channels;
  const double count = count_of(statistics);
  for (std::int64_t i = 0; i < channels; ++i) {
    const double r = data_of<double>(statistics.inverse)[i], of_gain = data_of(gain)[i];
    const double of_x = of_gain * r * r * r * products[i] / count;
    data_of(slope)[i] = static_cast<float>(-of_x);
    data_of(offset)[i] = static_cast<float>(data_of(statistics.mean)[i] * of_x - of_gain * r * sums[i] / count);
  }
}

}  // namespace kolo::models

#include <vector>

#include "models/compute/cpu_compute.h"
#include "models/compute/denormals.h"
#include "models/compute/image_pass.h"

namespace kolo::models {
namespace {

using Choice = std::uint16_t;

/// The numbers of one image of a tensor [examples, …].
template <class T = float>
T* image_of(const Tensor& images, std::int64_t example) {
  return data_of<T>(images) + example * (images.elements() / images.shape[0]);
}

}  // namespace

const ImagePlan& CpuCompute::plan_for(const ImageExtents& extents) const {
  return plans_.at(extents, [&] { return ImagePlan(extents); });
}

Shape CpuCompute::choices(const ImageStage& stage, const Shape& images) const {
  if (stage.filters.data == nullptr) {
    return {images[0], images[1], plan_for(ImageExtents(stage.pooling, images)).choices()};
  }
  return {images[0], stage.filters.shape[0], plan_for(ImageExtents(stage, images)).choices()};
}

void CpuCompute::convolve(const ImageStage& stage, const Tensor& x, const Tensor& y, const Tensor& chosen) {
  const DenormalsAreZero in_here;
  const ImagePlan& plan = plan_for(ImageExtents(stage, x.shape));
  ConvolutionPass convolution(*this, images_, plan, stage);
  PoolPass pooling(plan, stage.activation, stage.scale, stage.shift);
  for (std::int64_t example = 0; example < x.shape[0]; ++example) {
    convolution.load(x, example);
    convolution.each_output([&](std::int64_t filter, const float* planes) {
      pooling.forward(filter, planes, image_of(y, example) + filter * plan.pooled(),
                      image_of<Choice>(chosen, example) + filter * plan.choices());
    });
  }
}

void CpuCompute::convolve_backward(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                                   bool add, const Tensor& dw, const Tensor& dbias, const Tensor& dx) {
  const DenormalsAreZero in_here;
  const ImagePlan& plan = plan_for(ImageExtents(stage, x.shape));
  const std::int64_t planes = plan.filter_floats(), of_tile = filters_at_a_time * planes;
  const bool with_input = dx.data != nullptr, with_norm = stage.slope.data != nullptr;
  ConvolutionPass convolution(*this, images_, plan, stage);
  PoolPass pooling(plan, stage.activation);
  WeightGradient weights(*this, images_, convolution);
  InputGradient input(*this, images_, plan, stage.filters, with_input);
  const Tensor memory = images_.gradient.make(
      *this, DType::f32, {plan.plane() + (with_input ? convolution.tiles() : 1) * of_tile}, "gradients of an image");
  fill(memory, 0);
  float* const gradients = data_of(memory) + plan.plane();
  std::vector<double> sums(static_cast<std::size_t>(plan.of().filters));

  for (std::int64_t example = 0; example < x.shape[0]; ++example) {
    convolution.load(x, example);
    for (std::int64_t tile = 0; tile < convolution.tiles(); ++tile) {
      float* const of = gradients + (with_input ? tile * of_tile : 0);
      const float* const output = with_norm ? convolution.output(tile) : nullptr;
      convolution.each_of_tile(tile, [&](std::int64_t filter, std::int64_t row) {
        float sum = pooling.backward(image_of(d, example) + filter * plan.pooled(),
                                     image_of<Choice>(chosen, example) + filter * plan.choices(), of + row * planes);
        if (with_norm) {
          sum = image_kernels().combine_planes(planes, data_of(stage.scale)[filter], data_of(stage.slope)[filter],
                                               data_of(stage.offset)[filter], output + row * planes, plan.inside(),
                                               of + row * planes);
        }
        sums[static_cast<std::size_t>(filter)] += static_cast<double>(sum);
      });
      weights.add(tile, of);
    }
    if (with_input) input.run(gradients, image_of(dx, example));
  }
  weights.finish(add, data_of(dw));
  if (dbias.data == nullptr) return;
  float* to = data_of(dbias);
  for (const double sum : sums) {
    *to = static_cast<float>(sum) + (add ? *to : 0.0f);
    ++to;
  }
}

void CpuCompute::pool(const Pooling& how, const Tensor& x, const Tensor& y, const Tensor& chosen) {
  const DenormalsAreZero in_here;
  const ImagePlan& plan = plan_for(ImageExtents(how, x.shape));
  PoolPass pooling(plan);
  float* const parts = zeros(*this, images_.input, plan.input_floats());
  const std::int64_t pixels = x.shape[2] * x.shape[3];
  for (std::int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane) {
    plan.split(data_of(x) + plane * pixels, parts);
    pooling.forward(0, parts, data_of(y) + plane * plan.pooled(), data_of<Choice>(chosen) + plane * plan.choices());
  }
}

void CpuCompute::pool_backward(const Pooling& how, const Tensor& chosen, const Tensor& d, const Tensor& dx) {
  const DenormalsAreZero in_here;
  const ImagePlan& plan = plan_for(ImageExtents(how, dx.shape));
  PoolPass pooling(plan);
  float* const parts = zeros(*this, images_.input, plan.input_floats());
  const std::int64_t pixels = dx.shape[2] * dx.shape[3];
  for (std::int64_t plane = 0; plane < dx.shape[0] * dx.shape[1]; ++plane) {
    pooling.backward(data_of(d) + plane * plan.pooled(), data_of<Choice>(chosen) + plane * plan.choices(), parts);
    plan.join(parts, data_of(dx) + plane * pixels);
  }
}

}  // namespace kolo::models

#include "models/compute/image_pass.h"

#include <algorithm>

#include "models/compute/cpu_compute.h"

namespace kolo::models {

const Kernels& image_kernels() {
  return kernels(Precision::f32);
}

float* zeros(Compute& compute, Buffer& buffer, std::int64_t count) {
  const Tensor tensor = buffer.make(compute, DType::f32, {count}, "the parts of an image");
  compute.fill(tensor, 0);
  return data_of(tensor);
}

std::size_t ImageScratch::bytes() const {
  std::size_t sum = 0;
  for (const Buffer* buffer : {&input, &output, &gradient, &weights, &sums, &input_weights, &input_gradient}) {
    sum += buffer->bytes();
  }
  return sum;
}

ConvolutionPass::ConvolutionPass(Compute& compute, ImageScratch& scratch, const ImagePlan& plan,
                                 const ImageStage& stage, bool first)
    : plan_(plan),
      tiles_(padded(plan.of().filters) / filters_at_a_time),
      input_(zeros(compute, scratch.input, plan.input_floats())),
      output_(zeros(compute, scratch.output, filters_at_a_time * plan.filter_floats())),
      weights_(zeros(compute, scratch.weights, tiles_ * filters_at_a_time * (plan.taps() + 1))),
      bias_(weights_ + tiles_ * filters_at_a_time * plan.taps()),
      convolved_(data_of(stage.convolved)),
      convolves_(first || convolved_ == nullptr) {
  for (std::int64_t filter = 0; filter < plan.of().filters; ++filter) {
    const std::int64_t tile = filter / filters_at_a_time, row = filter % filters_at_a_time;
    for (std::int64_t tap = 0; tap < plan.taps(); ++tap) {
      weights_[(tile * plan.taps() + tap) * filters_at_a_time + row] =
          data_of(stage.filters)[filter * plan.taps() + tap];
    }
    if (stage.bias.data != nullptr) bias_[filter] = data_of(stage.bias)[filter];
  }
}

void ConvolutionPass::load(const Tensor& images, std::int64_t example) {
  example_ = example;
  plan_.split(data_of(images) + example * (images.elements() / images.shape[0]), input_);
}

const float* ConvolutionPass::output(std::int64_t tile) {
  float* const to = convolved_ == nullptr
                        ? output_
                        : convolved_ + (example_ * tiles_ + tile) * filters_at_a_time * plan_.filter_floats();
  if (convolves_) {
    image_kernels().correlate(plan_.taps_view(), weights_ + tile * plan_.taps() * filters_at_a_time,
                              bias_ + tile * filters_at_a_time, input_, to);
  }
  return to;
}

WeightGradient::WeightGradient(Compute& compute, ImageScratch& scratch, const ConvolutionPass& pass)
    : pass_(pass),
      sums_(zeros(compute, scratch.sums, pass.tiles() * pass.plan_.taps() * filters_at_a_time * vector_floats)) {}

void WeightGradient::add(std::int64_t tile, const float* d) {
  const TapView view = pass_.plan_.taps_view();
  image_kernels().correlate_back(view, d, pass_.input_, sums_ + tile * view.taps * filters_at_a_time * vector_floats);
}

void WeightGradient::finish(bool add, float* dw) const {
  const std::int64_t taps = pass_.plan_.taps();
  for (std::int64_t filter = 0; filter < pass_.plan_.of().filters; ++filter) {
    const std::int64_t tile = filter / filters_at_a_time, row = filter % filters_at_a_time;
    for (std::int64_t tap = 0; tap < taps; ++tap, ++dw) {
      const float* const lanes = sums_ + ((tile * taps + tap) * filters_at_a_time + row) * vector_floats;
      float sum = 0;
      for (std::int64_t lane = 0; lane < vector_floats; ++lane) sum += lanes[lane];
      *dw = sum + (add ? *dw : 0.0f);
    }
  }
}

InputGradient::InputGradient(Compute& compute, ImageScratch& scratch, const ImagePlan& plan, const Tensor& filters,
                             bool wanted)
    : plan_(plan) {
  if (!wanted) return;
  const std::int64_t channels = plan.of().channels, of_channel = plan.of().kernel * plan.of().kernel;
  const std::int64_t parts = plan.step() * plan.step(), all = plan.of().filters * plan.parts() * of_channel;
  const std::int64_t tiles = (channels + filters_at_a_time - 1) / filters_at_a_time;
  tile_weights_ = all * filters_at_a_time;
  weights_ = zeros(compute, scratch.input_weights, tiles * tile_weights_);
  parts_ = zeros(compute, scratch.input_gradient, tiles * filters_at_a_time * parts * plan.plane());
  offsets_.resize(static_cast<std::size_t>(parts));
  std::int64_t at = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    first_.push_back(at);
    for (std::int64_t i = 0; i < all; ++i) {
      const std::int64_t filter = i / (plan.parts() * of_channel), output = i / of_channel % plan.parts();
      const std::int64_t tap = i % of_channel;
      const ImagePlan::Place& place = plan.places()[static_cast<std::size_t>(output * plan.taps() + tap)];
      if (place.part != part) continue;
      offsets_[static_cast<std::size_t>(part)].push_back((filter * plan.parts() + output) * plan.plane() - place.shift);
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        weights_[channel / filters_at_a_time * tile_weights_ + at * filters_at_a_time + channel % filters_at_a_time] =
            data_of(filters)[filter * plan.taps() + channel * of_channel + tap];
      }
      ++at;
    }
  }
}

void InputGradient::run(const float* d, float* image) {
  constexpr float none[filters_at_a_time] = {};
  const std::int64_t parts = std::ssize(offsets_), channels = plan_.of().channels;
  for (std::int64_t channel = 0; channel < channels; channel += filters_at_a_time) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::vector<std::int64_t>& offsets = offsets_[static_cast<std::size_t>(part)];
      const TapView view{.taps = std::ssize(offsets),
                         .filter = parts * plan_.plane(),
                         .plane = plan_.plane(),
                         .count = plan_.plane(),
                         .offsets = offsets.data()};
      image_kernels().correlate(view,
                                weights_ + channel / filters_at_a_time * tile_weights_ +
                                    first_[static_cast<std::size_t>(part)] * filters_at_a_time,
                                none, d, parts_ + (channel * parts + part) * plan_.plane());
    }
  }
  plan_.join(parts_, image);
}

PoolPass::PoolPass(const ImagePlan& plan, Activation activation, const Tensor& scale, const Tensor& shift)
    : view_(plan.pool_view(activation)), scale_(data_of(scale)), shift_(data_of(shift)) {}

void PoolPass::forward(std::int64_t filter, const float* planes, float* y, std::uint16_t* chosen) const {
  PoolView view = view_;
  if (scale_ != nullptr) {
    view.scale = scale_[filter];
    view.shift = shift_[filter];
  }
  image_kernels().pool(view, planes, y, chosen);
}

float PoolPass::backward(const float* d, const std::uint16_t* chosen, float* d_planes) const {
  return image_kernels().pool_backward(view_, d, chosen, d_planes);
}

}  // namespace kolo::models

#include "models/compute/image_plan.h"

#include <algorithm>
#include <cmath>

namespace kolo::models {
namespace {

constexpr std::int64_t divided_up(std::int64_t number, std::int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

constexpr std::int64_t whole_vectors(std::int64_t floats) {
  return divided_up(floats, vector_floats) * vector_floats;
}

}  // namespace

Shape ImageStage::output(const Shape& images) const {
  const auto extent = [&](std::int64_t size) {
    const std::int64_t convolved = extent_behind(size, filters.shape[2], convolution.stride, convolution.padding);
    return extent_behind(convolved, pooling.window, pooling.step(), pooling.padding);
  };
  return {images[0], filters.shape[0], extent(images[2]), extent(images[3])};
}

ImageExtents::ImageExtents(const ImageStage& stage, const Shape& images)
    : channels(images[1]),
      height(images[2]),
      width(images[3]),
      filters(stage.filters.shape[0]),
      kernel(stage.filters.shape[2]),
      convolution(stage.convolution),
      pooling(stage.pooling) {}

ImageExtents::ImageExtents(const Pooling& how, const Shape& images)
    : channels(1), height(images[2]), width(images[3]), filters(1), kernel(1), pooling(how) {}

ImagePlan::ImagePlan(const ImageExtents& extents) : extents_(extents) {
  const auto& [channels, height, width, filters, kernel, convolution, pooling] = extents_;
  const std::int64_t stride = convolution.stride, t = pooling.step(), margin = pooling.padding;
  const auto behind = [&](std::int64_t extent) {
    return extent_behind(extent, extents_.kernel, stride, extents_.convolution.padding);
  };
  const auto pooled = [&](std::int64_t extent) { return extent_behind(extent, extents_.pooling.window, t, margin); };
  const std::int64_t padding = 2 * (convolution.padding + stride * margin);
  rows_ = behind(height);
  columns_ = behind(width);
  pooled_rows_ = pooled(rows_);
  pooled_columns_ = pooled(columns_);
  pitch_ = divided_up(width + padding, step());
  count_ = whole_vectors(divided_up(rows_ + 2 * margin, t) * pitch_);

  std::int64_t furthest = 0;
  for (std::int64_t part = 0; part < parts(); ++part) {
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      for (std::int64_t tap = 0; tap < kernel * kernel; ++tap) {
        const std::int64_t row = stride * (part / t) + tap / kernel, column = stride * (part % t) + tap % kernel;
        places_.push_back(
            {.part = row % step() * step() + column % step(), .shift = row / step() * pitch_ + column / step()});
        furthest = std::max(furthest, places_.back().shift);
      }
    }
  }
  const std::int64_t last = (pooling.window - 1) / t * (pitch_ + 1);
  const std::int64_t last_window = (pooled_rows_ - 1) * pitch_ + whole_vectors(pooled_columns_);
  plane_ = whole_vectors(
      std::max({divided_up(height + padding, step()) * pitch_, count_ + std::max(furthest, last), last_window + last}));
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const std::int64_t channel = static_cast<std::int64_t>(i) % taps() / (kernel * kernel);
    offsets_.push_back((channel * step() * step() + places_[i].part) * plane_ + places_[i].shift);
  }
  for (std::int64_t pixel = 0; pixel < pooling.window * pooling.window; ++pixel) {
    const std::int64_t row = pixel / pooling.window, column = pixel % pooling.window;
    pixels_.push_back((row % t * t + column % t) * plane_ + row / t * pitch_ + column / t);
  }
  inside_.resize(static_cast<std::size_t>(filter_floats()));
  for (std::int64_t row = 0; row < rows_; ++row) {
    for (std::int64_t column = 0; column < columns_; ++column) {
      const std::int64_t y = row + margin, x = column + margin;
      inside_[static_cast<std::size_t>((y % t * t + x % t) * plane_ + y / t * pitch_ + x / t)] = -1;
    }
  }
}

namespace {

/// Calls body(pixel of the image, place in its parts) for the first of each run of pixels that lie `step` apart.
template <class Body>
void for_runs(const ImagePlan& plan, Body body) {
  const ImageExtents& of = plan.of();
  const std::int64_t step = plan.step(), margin = of.convolution.padding + of.convolution.stride * of.pooling.padding;
  for (std::int64_t channel = 0; channel < of.channels; ++channel) {
    for (std::int64_t row = 0; row < of.height; ++row) {
      for (std::int64_t first = 0; first < std::min(step, of.width); ++first) {
        const std::int64_t y = row + margin, x = first + margin;
        body((channel * of.height + row) * of.width + first,
             (channel * step * step + y % step * step + x % step) * plan.plane() + y / step * plan.pitch() + x / step,
             divided_up(of.width - first, step));
      }
    }
  }
}

}  // namespace

void ImagePlan::split(const float* image, float* parts) const {
  for_runs(*this, [&, by = step()](std::int64_t pixel, std::int64_t place, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) parts[place + i] = image[pixel + i * by];
  });
}

void ImagePlan::join(const float* parts, float* image) const {
  for_runs(*this, [&, by = step()](std::int64_t pixel, std::int64_t place, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) image[pixel + i * by] = parts[place + i];
  });
}

TapView ImagePlan::taps_view() const {
  return {.taps = taps(),
          .parts = parts(),
          .filter = filter_floats(),
          .plane = plane_,
          .count = count_,
          .offsets = offsets_.data()};
}

PoolView ImagePlan::pool_view(Activation activation) const {
  const Pooling& pooling = extents_.pooling;
  return {.pixels = pooling.window * pooling.window,
          .rows = pooled_rows_,
          .columns = pooled_columns_,
          .pitch = pitch_,
          .plane = plane_,
          .parts = parts(),
          .tiled = pooling.padding == 0 && rows_ == pooled_rows_ * pooling.step() &&
                   columns_ == pooled_columns_ * pooling.step() && pooling.window == pooling.step(),
          .offsets = pixels_.data(),
          .inside = pooling.padding > 0 ? inside_.data() : nullptr,
          .floor = activation == Activation::relu ? 0.0f : -INFINITY};
}

}  // namespace kolo::models

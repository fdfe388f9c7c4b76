#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"
#include "models/compute/image_plan.h"

namespace kolo::models {

/// Kernels of images, which are f32 in every precision.
const Kernels& image_kernels();

/// A buffer's memory, filled with 0.
float* zeros(Compute& compute, Buffer& buffer, std::int64_t count);

/// Memory of the operations on images of one Compute: of one image, and of what is summed over images.
struct ImageScratch {
  Buffer input, output, gradient, weights, sums, input_weights, input_gradient;

  std::size_t bytes() const;
};

/// Convolutions of one image at a time, a tile of filters_at_a_time filters at a time, which stays in the nearest cache
/// until it is used, or is in stage.convolved. One at a time per scratch; all that it is given must outlive it.
class ConvolutionPass {
 public:
  /// first  whether stage.convolved, if there is one, is written; else it is read
  ConvolutionPass(Compute& compute, ImageScratch& scratch, const ImagePlan& plan, const ImageStage& stage,
                  bool first = false);

  /// So many filters, rounded up to whole tiles.
  static std::int64_t padded(std::int64_t filters) {
    return (filters + filters_at_a_time - 1) / filters_at_a_time * filters_at_a_time;
  }

  /// Takes the image that the other functions are about.
  void load(const Tensor& images, std::int64_t example);

  std::int64_t tiles() const { return tiles_; }
  /// [filters_at_a_time, parts, plane], valid until the next call.
  const float* output(std::int64_t tile);

  /// Calls body(filter, its number in the tile) for each filter of a tile.
  template <class Body>
  void each_of_tile(std::int64_t tile, Body body) const {
    for (std::int64_t row = 0, filter = tile * filters_at_a_time; row < filters_at_a_time; ++row, ++filter) {
      if (filter < plan_.of().filters) body(filter, row);
    }
  }
  /// Calls body(filter, its output [parts, plane]) for each filter.
  template <class Body>
  void each_output(Body body) {
    for (std::int64_t tile = 0; tile < tiles_; ++tile) {
      const float* const planes = output(tile);
      each_of_tile(tile,
                   [&](std::int64_t filter, std::int64_t row) { body(filter, planes + row * plan_.filter_floats()); });
    }
  }

 private:
  friend class WeightGradient;

  const ImagePlan& plan_;
  std::int64_t tiles_;
  float *input_, *output_, *weights_, *bias_,
      *convolved_;  // convolved_ [examples, tiles, filters_at_a_time, parts, plane]
  bool convolves_;
  std::int64_t example_ = 0;
};

/// The gradient of the filters, summed over images in their order.
class WeightGradient {
 public:
  WeightGradient(Compute& compute, ImageScratch& scratch, const ConvolutionPass& pass);

  /// Adds that of the pass's image, given the gradient d [filters_at_a_time, parts, plane] of a tile's output.
  void add(std::int64_t tile, const float* d);
  /// Writes the sum to dw [filters, taps], or adds it.
  void finish(bool add, float* dw) const;

 private:
  const ConvolutionPass& pass_;
  float* sums_;  // [tiles, taps, filters_at_a_time, vector_floats]
};

/// The gradient of an image, from that of its convolution: a convolution again, of all filters' gradients, part by part
/// of the image's channels, with the taps that meet that part.
class InputGradient {
 public:
  /// wanted  whether run() will be called
  InputGradient(Compute& compute, ImageScratch& scratch, const ImagePlan& plan, const Tensor& filters, bool wanted);

  /// d is [filters, parts, plane], with 0 between its counts, and in one plane before it.
  void run(const float* d, float* image);

 private:
  const ImagePlan& plan_;
  std::vector<std::vector<std::int64_t>> offsets_;  // by part of a channel: into d
  std::vector<std::int64_t> first_;                 // by part: where its weights begin in those of a tile
  std::int64_t tile_weights_ = 0;
  float *weights_ = nullptr, *parts_ = nullptr;
};

/// Pooling of one filter at a time.
class PoolPass {
 public:
  /// scale, shift  the norm before it; empty: none. Must outlive this, as the plan must
  explicit PoolPass(const ImagePlan& plan, Activation activation = Activation::none, const Tensor& scale = {},
                    const Tensor& shift = {});

  /// y and choices of a filter's planes.
  void forward(std::int64_t filter, const float* planes, float* y, std::uint16_t* chosen) const;
  /// d_planes [parts, plane] = the gradient behind the norm. Returns its sum.
  float backward(const float* d, const std::uint16_t* chosen, float* d_planes) const;

 private:
  PoolView view_;
  const float *scale_, *shift_;
};

}  // namespace kolo::models

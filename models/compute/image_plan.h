#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "models/compute/compute.h"
#include "models/compute/kernels.h"

namespace kolo::models {

/// Extents of a stage (models/compute/compute.h) that images pass through.
struct ImageExtents {
  ImageExtents(const ImageStage& stage, const Shape& images);
  /// Of pooling alone, channel by channel.
  ImageExtents(const Pooling& pooling, const Shape& images);

  std::int64_t channels, height, width, filters, kernel;
  Convolution convolution;
  Pooling pooling;

  auto operator<=>(const ImageExtents&) const = default;
};

/// The order in which one image is convolved and pooled.
///
/// With a convolution of stride s and a pooling of stride t, the pixel (y, x) of a channel that has been padded for
/// both is in part (y mod st, x mod st) of the channel, at row y / st, column x / st; the pixel (y, x) of a filter's
/// output is in part (y mod t, x mod t), at row y / t, column x / t. All parts have the same pitch. So the pixels that
/// a tap of the filter, (channel, row, column), is multiplied with for all outputs of a part are that part of the
/// output, shifted by a fixed offset; likewise the pixels that have the same place in their windows. Vectors run over
/// parts from end to end; what they compute beyond the end of a row is never used.
class ImagePlan {
 public:
  explicit ImagePlan(const ImageExtents& extents);

  /// Puts one image into its parts, [channels, parts of a channel, plane]; the padding is not written.
  void split(const float* image, float* parts) const;
  /// The inverse.
  void join(const float* parts, float* image) const;

  const ImageExtents& of() const { return extents_; }
  std::int64_t taps() const { return extents_.channels * extents_.kernel * extents_.kernel; }
  std::int64_t step() const { return extents_.convolution.stride * extents_.pooling.step(); }
  std::int64_t input_floats() const { return extents_.channels * step() * step() * plane_; }
  std::int64_t parts() const { return extents_.pooling.step() * extents_.pooling.step(); }  ///< of a filter's output
  std::int64_t plane() const { return plane_; }                    ///< floats of a part; a multiple of vector_floats
  std::int64_t count() const { return count_; }                    ///< of which so many are computed
  std::int64_t filter_floats() const { return parts() * plane_; }  ///< of a filter's output
  std::int64_t rows() const { return rows_; }                      ///< of the convolution's output
  std::int64_t columns() const { return columns_; }
  std::int64_t pooled() const { return pooled_rows_ * pooled_columns_; }
  std::int64_t choices() const { return pooled_rows_ * pool_view().width(); }  ///< of a filter
  std::int64_t pitch() const { return pitch_; }
  const std::int32_t* inside() const { return inside_.data(); }  ///< as in PoolView
  /// Part of the channel, and shift within it, of each tap, [parts, taps]: input offsets are
  /// (channel·step² + part)·plane + shift.
  struct Place {
    std::int64_t part, shift;
  };
  const std::vector<Place>& places() const { return places_; }

  TapView taps_view() const;
  PoolView pool_view(Activation activation = Activation::none) const;

 private:
  ImageExtents extents_;
  std::int64_t rows_, columns_, pooled_rows_, pooled_columns_, pitch_ = 0, count_ = 0, plane_ = 0;
  std::vector<Place> places_;
  std::vector<std::int64_t> offsets_, pixels_;
  std::vector<std::int32_t> inside_;
};

}  // namespace kolo::models

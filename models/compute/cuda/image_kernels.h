#pragma once

#include "models/compute/cuda/tile_kernels.h"

// Images [examples, channels, height, width]. Convolutions are products whose operands are never written down: the rows
// of a patch matrix, [taps, places], are read from the image where they are needed.

namespace kolo::models::cuda {

/// Extents of a convolution; its output is [examples, filters, rows, columns].
struct ConvolutionExtents {
  Index examples = 0, channels = 0, height = 0, width = 0;
  Index filters = 0, kernel = 1, stride = 1, padding = 0;
  Index rows = 0, columns = 0;

  constexpr Index taps() const { return channels * kernel * kernel; }
  constexpr Index plane() const { return rows * columns; }
  constexpr Index places() const { return examples * plane(); }
  /// Where the output of a filter at a place is.
  constexpr Index output(Index filter, Index place) const {
    return (place / plane() * filters + filter) * plane() + place % plane();
  }
  /// What a tap meets at a place; 0 in the padding.
  constexpr float met(const Items& images, Index tap, Index place) const {
    const Index channel = tap / (kernel * kernel), at = place % plane();
    const Index row = at / columns * stride - padding + tap / kernel % kernel;
    const Index column = at % columns * stride - padding + tap % kernel;
    if (row < 0 || row >= height || column < 0 || column >= width) return 0;
    return images.load(((place / plane() * channels + channel) * height + row) * width + column);
  }
};

/// y = the convolution of x, plus a bias (may be null): [filters, taps] · [taps, places].
struct Convolve : Tiles {
  ConvolutionExtents of;
  Items x, y;
  const float *filters = nullptr, *bias = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index filter = first_row(block), place = first_column(block);
    multiply_tile(
        team, 0, of.taps(),
        [&](Index i, Index tap) { return filter + i < m ? filters[(filter + i) * of.taps() + tap] : 0.0f; },
        [&](Index tap, Index j) { return place + j < n ? of.met(x, tap, place + j) : 0.0f; },
        [&](Index i, Index j, float sum) {
          if (filter + i >= m || place + j >= n) return;
          y.store(of.output(filter + i, place + j), sum + (bias == nullptr ? 0.0f : bias[filter + i]));
        });
  }
};

/// Parts [chunks, filters, taps + 1] of the gradient of filters and, last in each row, of their bias, from that of y:
/// [filters, places] · [places, taps], a chunk of places at a time.
struct ConvolveBackwardFilters : Tiles {
  ConvolutionExtents of;
  Items x;
  const float* dy = nullptr;
  float* parts = nullptr;

  constexpr Index of_chunk() const { return most(1024, divided_up(of.places(), 64)); }
  constexpr Index chunks() const { return divided_up(of.places(), of_chunk()); }
  constexpr Index blocks() const { return tiles() * chunks(); }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index filter = first_row(block), tap = first_column(block), chunk = block / tiles();
    const Index first = chunk * of_chunk();
    multiply_tile(
        team, first, least(of.places(), first + of_chunk()),
        [&](Index i, Index place) { return filter + i < m ? dy[of.output(filter + i, place)] : 0.0f; },
        [&](Index place, Index j) {
          if (tap + j == of.taps()) return 1.0f;
          return tap + j < n ? of.met(x, tap + j, place) : 0.0f;
        },
        [&](Index i, Index j, float sum) {
          if (filter + i < m && tap + j < n) parts[(chunk * m + filter + i) * n + tap + j] = sum;
        });
  }
};

/// dx from dy: [channels, filters · kernel²] · [filters · kernel², pixels].
struct ConvolveBackwardImages : Tiles {
  ConvolutionExtents of;
  const float *filters = nullptr, *dy = nullptr;
  Items dx;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index first_channel = first_row(block), first_pixel = first_column(block), square = of.kernel * of.kernel;
    const Index image = of.height * of.width;
    multiply_tile(
        team, 0, of.filters * square,
        [&](Index i, Index term) {
          if (first_channel + i >= m) return 0.0f;
          return filters[(term / square * of.channels + first_channel + i) * square + term % square];
        },
        [&](Index term, Index j) {
          const Index pixel = first_pixel + j;
          if (pixel >= n) return 0.0f;
          const Index y = pixel % image / of.width + of.padding - term % square / of.kernel;
          const Index x = pixel % of.width + of.padding - term % of.kernel;
          if (y < 0 || x < 0 || y % of.stride != 0 || x % of.stride != 0) return 0.0f;
          const Index row = y / of.stride, column = x / of.stride;
          if (row >= of.rows || column >= of.columns) return 0.0f;
          return dy[((pixel / image * of.filters + term / square) * of.rows + row) * of.columns + column];
        },
        [&](Index i, Index j, float sum) {
          const Index channel = first_channel + i, pixel = first_pixel + j;
          if (channel < m && pixel < n) dx.store((pixel / image * m + channel) * image + pixel % image, sum);
        });
  }
};

/// Max-pooling of planes [planes, rows, columns] to [planes, pooled_rows, pooled_columns].
struct PoolExtents : Elementwise {
  Index channels = 1;  ///< planes are counted through examples and channels
  Index rows = 0, columns = 0, pooled_rows = 0, pooled_columns = 0;
  Index window = 1, step = 1, padding = 0;
  std::uint16_t* chosen = nullptr;  ///< which pixel of each window; window² if none is above the floor

  constexpr Index plane() const { return rows * columns; }
  constexpr Index pooled() const { return pooled_rows * pooled_columns; }
};

/// `count` is that of y. What is pooled is x·scale + shift (null: x) of the plane's channel, at least the floor.
struct Pool : PoolExtents {
  Items x, y;
  const float *scale = nullptr, *shift = nullptr;
  float floor = 0;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      const Index of_plane = i / pooled(), channel = of_plane % channels, at = i % pooled();
      const Index first_row = at / pooled_columns * step - padding, first_column = at % pooled_columns * step - padding;
      float largest = floor;
      Index which = window * window;
      for (Index n = 0; n < window * window; ++n) {
        const Index row = first_row + n / window, column = first_column + n % window;
        if (row < 0 || row >= rows || column < 0 || column >= columns) continue;
        float value = x.load(of_plane * plane() + row * columns + column);
        if (scale != nullptr) value = value * scale[channel] + shift[channel];
        if (value <= largest || largest != largest) continue;  // not-a-number is taken, and kept
        largest = value;
        which = n;
      }
      y.store(i, largest);
      chosen[i] = static_cast<std::uint16_t>(which);
    });
  }
};

/// `count` is that of dx, the gradient of what was pooled; of its norm's input where there is a slope.
struct PoolBackward : PoolExtents {
  Items d, output, dx;
  const float *scale = nullptr, *slope = nullptr, *offset = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      const Index of_plane = i / plane(), at = i % plane(), row = at / columns, column = at % columns;
      float sum = 0;
      for (Index y = first_window(row); y <= least(pooled_rows - 1, (row + padding) / step); ++y) {
        for (Index x = first_window(column); x <= least(pooled_columns - 1, (column + padding) / step); ++x) {
          const Index from = of_plane * pooled() + y * pooled_columns + x;
          const Index n = (row + padding - y * step) * window + column + padding - x * step;
          if (chosen[from] == n) sum += d.load(from);
        }
      }
      if (slope != nullptr) {
        const Index channel = of_plane % channels;
        sum = scale[channel] * sum + slope[channel] * output.load(i) + offset[channel];
      }
      dx.store(i, sum);
    });
  }

 private:
  /// The first window that reaches a row or column.
  constexpr Index first_window(Index at) const {
    const Index beyond = at + padding - window + 1;
    return beyond <= 0 ? 0 : divided_up(beyond, step);
  }
};

/// Planes [examples, channels, plane] by channel: a block has one.
struct ChannelRows {
  static constexpr int threads = 256;
  Index examples = 0, channels = 0, plane = 0;

  constexpr Index blocks() const { return channels; }
  constexpr Index shared_floats() const { return 0; }
  constexpr Index of_channel() const { return examples * plane; }
  constexpr Index at(Index channel, Index i) const { return (i / plane * channels + channel) * plane + i % plane; }
};

/// As Compute::batch_sums(), of what is convolved.
struct ChannelSums : ChannelRows {
  Items x;
  double *sums = nullptr, *own = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index channel) const {
    const auto count = static_cast<double>(of_channel());
    const auto total =
        sum<double>(team, of_channel(), [&](Index i) { return static_cast<double>(x.load(at(channel, i))); });
    const double mean = count > 0 ? total / count : 0;
    const auto squares = sum<double>(team, of_channel(), [&](Index i) {
      const double apart = static_cast<double>(x.load(at(channel, i))) - mean;
      return apart * apart;
    });
    each(team, 1, [&](Index) {
      sums[channel] = total;
      own[channel] = mean;
      own[channels + channel] = squares;
      if (channel == 0) sums[channels] = own[2 * channels] = count;
    });
  }
};

/// As Compute::batch_products(), given d, the gradient of the norm's output.
struct ChannelProducts : ChannelRows {
  Items x;
  const float *d = nullptr, *mean = nullptr;
  const double* inverse = nullptr;
  double* products = nullptr;  ///< [2, channels]
  bool add = false;
  float *d_gain = nullptr, *d_bias = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index channel) const {
    const auto total = sum<double>(team, of_channel(), [&](Index i) { return static_cast<double>(d[at(channel, i)]); });
    const auto product = sum<double>(team, of_channel(), [&](Index i) {
      return static_cast<double>(d[at(channel, i)] * (x.load(at(channel, i)) - mean[channel]));
    });
    each(team, 1, [&](Index) {
      products[channel] = total;
      products[channels + channel] = product;
      d_bias[channel] = static_cast<float>(total) + (add ? d_bias[channel] : 0.0f);
      d_gain[channel] = static_cast<float>(product * inverse[channel]) + (add ? d_gain[channel] : 0.0f);
    });
  }
};

/// The numbers of a batch norm; `count` is that of the channels. Members as those of BatchStatistics.
struct NormKernel : Elementwise {
  double *sums = nullptr, *squares = nullptr, *own = nullptr, *inverse = nullptr, *products = nullptr;
  float* mean = nullptr;

  /// Numbers of each channel on all ranks, at least 1.
  template <class I>
  constexpr double numbers(I channels) const {
    return sums[channels] > 1 ? sums[channels] : 1.0;
  }
};

/// As Compute::batch_squares().
struct NormSquares : NormKernel {
  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      mean[i] = static_cast<float>(sums[i] / numbers(count));
      const double apart = own[i] - static_cast<double>(mean[i]);
      squares[i] = own[count + i] + apart * apart * own[2 * count];
    });
  }
};

/// As Compute::batch_fold().
struct NormFold : NormKernel {
  bool training = false;
  double eps = 0;
  const float *gain = nullptr, *bias = nullptr;
  float *running_mean = nullptr, *running_variance = nullptr, *scale = nullptr, *shift = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    constexpr float step = 0.1f;
    over(team, block, [&](Index i) {
      if (training && sums[count] != 0) {
        const double all = numbers(count);
        inverse[i] = 1 / ::sqrt(squares[i] / all + eps);
        const auto of_sample = static_cast<float>(squares[i] / (all > 2 ? all - 1 : 1.0));
        running_mean[i] += step * (mean[i] - running_mean[i]);
        running_variance[i] += step * (of_sample - running_variance[i]);
      } else {
        mean[i] = running_mean[i];
        inverse[i] = 1 / ::sqrt(static_cast<double>(running_variance[i]) + eps);
      }
      const double factor = static_cast<double>(gain[i]) * inverse[i];
      scale[i] = static_cast<float>(factor);
      shift[i] = static_cast<float>(static_cast<double>(bias[i]) - static_cast<double>(mean[i]) * factor);
    });
  }
};

/// As Compute::batch_fold_backward().
struct NormFoldBackward : NormKernel {
  const float* gain = nullptr;
  float *slope = nullptr, *offset = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      const double r = inverse[i], of_gain = gain[i], all = numbers(count);
      const double of_x = of_gain * r * r * r * products[count + i] / all;
      slope[i] = static_cast<float>(-of_x);
      offset[i] = static_cast<float>(static_cast<double>(mean[i]) * of_x - of_gain * r * products[i] / all);
    });
  }
};

}  // namespace kolo::models::cuda

#pragma once

#include "models/compute/compute.h"
#include "models/compute/cuda/team.h"

// Updates of many tensors in one launch: a block has a piece of one of them.

namespace kolo::models::cuda {

/// Tensors of a launch: what fits into a kernel's arguments.
inline constexpr int most_updated = 128;

/// One tensor; `first_block` counts through those of a launch.
struct UpdatedPieces {
  float* value = nullptr;
  const float* gradient = nullptr;
  float *first = nullptr, *second = nullptr;  ///< see UpdatedTensor
  Index count = 0, first_block = 0;
  float kept = 1, pull = 0;  ///< of Adam's decay
  double* square = nullptr;  ///< where the sum of squares goes
};

struct Pieces {
  static constexpr int threads = 256;
  static constexpr Index piece = 4096;
  UpdatedPieces tensors[most_updated];
  int used = 0;
  Index all_blocks = 0;

  constexpr Index blocks() const { return all_blocks; }
  constexpr Index shared_floats() const { return 0; }

  template <class I>
  constexpr const UpdatedPieces& tensor_of(I block) const {
    int at = 0;
    for (int behind = used; behind - at > 1;) {
      const int middle = (at + behind) / 2;
      (tensors[middle].first_block <= block ? at : behind) = middle;
    }
    return tensors[at];
  }
  /// body(tensor, i) for the elements of a block.
  template <class Team, class Body>
  constexpr void over(const Team& team, Index block, Body body) const {
    const UpdatedPieces& tensor = tensor_of(block);
    const Index begin = (block - tensor.first_block) * piece;
    each(team, least(piece, tensor.count - begin), [&](Index i) { body(tensor, begin + i); });
  }
};

/// The sum of squares of each block's gradient; then SquareTotals.
struct SquareParts : Pieces {
  double* parts = nullptr;  ///< by block

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const UpdatedPieces& tensor = this->tensor_of(block);
    const Index begin = (block - tensor.first_block) * piece;
    const auto total = sum<double>(team, least(piece, tensor.count - begin), [&](Index i) {
      const auto value = static_cast<double>(tensor.gradient[begin + i]);
      return value * value;
    });
    each(team, 1, [&](Index) { parts[block] = total; });
  }
};

/// The sum of each tensor's parts. A block has a tensor.
struct SquareTotals : SquareParts {
  constexpr Index blocks() const { return used; }

  template <class Team>
  constexpr void operator()(const Team& team, Index at) const {
    const UpdatedPieces& tensor = tensors[at];
    const auto total =
        sum<double>(team, divided_up(tensor.count, piece), [&](Index i) { return parts[tensor.first_block + i]; });
    each(team, 1, [&](Index) { *tensor.square = total; });
  }
};

/// As Compute::clip().
struct Clip : Rowwise<256> {
  const double* squares = nullptr;
  Index count = 0;
  double factor = 1, most = 0;
  float* scale = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index) const {
    const auto total = sum<double>(team, count, [&](Index i) { return squares[i]; });
    const double norm = factor * ::sqrt(total);
    const bool finite = norm < HUGE_VAL;
    each(team, 1, [&](Index) {
      scale[0] = finite ? static_cast<float>(factor * clip_factor(norm, most)) : 0.0f;
      scale[1] = finite ? 1.0f : 0.0f;
    });
  }
};

/// As Compute::sgd().
struct SgdUpdate : Pieces {
  float lr = 0, momentum = 0;
  const float* gradient_scale = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    if (gradient_scale[1] == 0) return;
    over(team, block, [&](const UpdatedPieces& of, Index i) {
      const float velocity = momentum * of.first[i] + *gradient_scale * of.gradient[i];
      of.first[i] = velocity;
      of.value[i] -= lr * velocity;
    });
  }
};

/// As Compute::adam().
struct AdamUpdate : Pieces {
  float beta1 = 0, rest1 = 0, beta2 = 0, rest2 = 0, step_size = 0, root_scale = 0, eps = 0;
  const float* gradient_scale = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    if (gradient_scale[1] == 0) return;
    over(team, block, [&](const UpdatedPieces& of, Index i) {
      const float g = *gradient_scale * of.gradient[i] + of.pull * of.value[i];
      const float mean = beta1 * of.first[i] + rest1 * g;
      const float square = beta2 * of.second[i] + rest2 * g * g;
      of.first[i] = mean;
      of.second[i] = square;
      of.value[i] = of.kept * of.value[i] - step_size * mean / (::sqrtf(square) * root_scale + eps);
    });
  }
};

}  // namespace kolo::models::cuda

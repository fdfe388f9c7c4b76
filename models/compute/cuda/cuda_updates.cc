// Compiled without fused multiply-adds, as cpu_updates.cc.

#include <algorithm>
#include <cmath>

#include "models/compute/cuda/cuda_compute.h"

namespace kolo::models::cuda {
namespace {

/// Puts a tensor behind the others of a launch.
void append(Pieces& to, const UpdatedTensor& tensor, double* square) {
  UpdatedPieces& pieces = to.tensors[to.used];
  pieces = {.value = data_of(tensor.value),
            .gradient = data_of(tensor.gradient),
            .first = data_of(tensor.first),
            .second = data_of(tensor.second),
            .count = tensor.gradient.elements(),
            .first_block = to.all_blocks,
            .square = square};
  ++to.used;
  to.all_blocks += divided_up(pieces.count, Pieces::piece);
}

/// Calls body(pieces of a launch, its first tensor) until all tensors are done; square sums go to `squares`, if there
/// are any.
template <class Body>
void for_launches(std::span<const UpdatedTensor> tensors, double* squares, Body body) {
  for (std::size_t first = 0; first < tensors.size(); first += most_updated) {
    const std::size_t end = std::min(tensors.size(), first + most_updated);
    Pieces pieces;
    for (std::size_t i = first; i < end; ++i) append(pieces, tensors[i], squares == nullptr ? nullptr : squares + i);
    body(pieces, first);
  }
}

}  // namespace

/// The sums of squares of the gradients of a launch.
void CudaCompute::add_squares(const Pieces& pieces) {
  const Tensor parts = parts_.make(*this, DType::f64, {std::max<Index>(pieces.all_blocks, 1)}, "sums of squares");
  const SquareParts squares{pieces, data_of<double>(parts)};
  device_->launch(squares);
  device_->launch(SquareTotals{squares});
}

void CudaCompute::sums_of_squares(std::span<const Tensor> tensors, const Tensor& sums) {
  std::vector<UpdatedTensor> gradients;
  for (const Tensor& tensor : tensors) gradients.push_back({.value = {}, .gradient = tensor, .first = {}});
  for_launches(gradients, data_of<double>(sums), [&](const Pieces& pieces, std::size_t) { add_squares(pieces); });
}

void CudaCompute::clip(double factor, double most, const Tensor& squares, const Tensor& scale) {
  device_->launch(Clip{{.rows = 1}, data_of<double>(squares), squares.elements(), factor, most, data_of(scale)});
}

void CudaCompute::sgd(const SgdStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) {
  for_launches(tensors, data_of<double>(squares), [&](const Pieces& pieces, std::size_t) {
    if (squares.data != nullptr) add_squares(pieces);
    device_->launch(SgdUpdate{pieces, step.lr, step.momentum, data_of(step.gradient_scale)});
  });
}

void CudaCompute::adam(const AdamStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) {
  const auto t = static_cast<double>(step.step);
  for_launches(tensors, data_of<double>(squares), [&](const Pieces& pieces, std::size_t first) {
    if (squares.data != nullptr) add_squares(pieces);
    AdamUpdate update{pieces,
                      static_cast<float>(step.beta1),
                      static_cast<float>(1 - step.beta1),
                      static_cast<float>(step.beta2),
                      static_cast<float>(1 - step.beta2),
                      static_cast<float>(step.lr / (1 - std::pow(step.beta1, t))),
                      static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, t))),
                      static_cast<float>(step.eps),
                      data_of(step.gradient_scale)};
    for (int i = 0; i < update.used; ++i) {
      const double decay = tensors[first + static_cast<std::size_t>(i)].decay;
      update.tensors[i].kept = static_cast<float>(step.decoupled ? 1 - step.lr * decay : 1);
      update.tensors[i].pull = static_cast<float>(step.decoupled ? 0 : decay);
    }
    device_->launch(update);
  });
}

}  // namespace kolo::models::cuda

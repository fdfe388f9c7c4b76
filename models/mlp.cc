#include "models/mlp.h"

#include <fmt/format.h>

#include "models/layers/linear.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

std::vector<std::int64_t> checked(std::vector<std::int64_t> sizes) {
  constexpr std::int64_t largest = std::int64_t{1} << 24;  // keeps every product of two sizes far from overflow
  if (sizes.size() < 2) throw ModelError("an MLP needs at least two sizes (inputs and outputs); say 784,1024,1024,10");
  for (std::int64_t size : sizes) {
    if (size >= 1 && size <= largest) continue;
    throw ModelError(
        fmt::format("an MLP cannot have a layer of size {} (1 to {}); say 784,1024,1024,10", size, largest));
  }
  return sizes;
}

}  // namespace

Mlp::Mlp(std::vector<std::int64_t> sizes, Precision precision)
    : LayeredModel({.image = {checked(sizes).front()}}, precision), sizes_(std::move(sizes)) {
  const std::size_t last = sizes_.size() - 2;
  for (std::size_t i = 0; i <= last; ++i) {
    add<Linear>(fmt::format("layers.{}", i), sizes_[i], sizes_[i + 1], i == last ? Activation::none : Activation::relu);
  }
  end<CrossEntropy>(sizes_.back());
}

}  // namespace kolo::models

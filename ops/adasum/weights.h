#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kolo {

/// The dot products of one vector per rank: g_i . g_j = product(i, j) * 2^(exponents[i] + exponents[j]). A view.
///
/// The exponents are whole numbers that keep products from overflowing where vectors are as large as an f64 can be, and
/// from vanishing where they are as small.
struct Gram {
  std::span<double> exponents;  ///< one per rank
  std::span<double> products;   ///< product_count() of them

  static constexpr std::size_t product_count(std::size_t ranks) { return ranks * (ranks + 1) / 2; }

  std::size_t ranks() const { return exponents.size(); }
  double& product(std::size_t i, std::size_t j) const { return i > j ? product(j, i) : products[j * (j + 1) / 2 + i]; }
};

/// What one rank's vector is multiplied by: factor * 2^exponent. The exponent is 0 unless that is too large for a
/// number, because the vector is tiny beside others.
struct AdasumWeight {
  double factor = 1;
  int exponent = 0;
};

/// One weight per rank: the sum of weight times vector over the ranks is `scale` times the adasum of the vectors,
/// combined as ReduceOp::adasum describes.
///
/// Every intermediate of adasum is a linear combination of the ranks' vectors, so its dot products follow from theirs.
/// A combination that is zero but for what rounding left counts as a zero vector. Products that are infinite or not a
/// number give weights that are not numbers. Pure.
std::vector<AdasumWeight> adasum_weights(const Gram& gram, double scale);

}  // namespace kolo

// A node of the tree stands for neighbouring ranks [begin, end): its vector is 2^exponent times the sum of weight[r] *
// u_r, where u_r = g_r / 2^(exponent of r) has about unit length if g_r is f64. Combining nodes multiplies the weights
// of each by a factor and puts both under the larger exponent, so that nothing overflows.

#include "ops/adasum/weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kolo {
namespace {

constexpr double rounding = std::numeric_limits<double>::epsilon();

struct Node {
  std::size_t begin;
  std::size_t end;
  double exponent;
};

double power_of_two(double exponent) {
  return std::ldexp(1.0, static_cast<int>(exponent));
}

class Tree final {
 public:
  explicit Tree(const Gram& gram) : gram_(gram), weights_(gram.ranks(), 1.0) {}

  /// Combines all ranks, and returns the root.
  Node combine_all() {
    std::vector<Node> nodes;
    for (std::size_t rank = 0; rank < gram_.ranks(); ++rank) nodes.push_back({rank, rank + 1, gram_.exponents[rank]});
    while (nodes.size() > 1) {
      std::vector<Node> above;
      for (std::size_t i = 0; i + 1 < nodes.size(); i += 2) above.push_back(combine(nodes[i], nodes[i + 1]));
      if (nodes.size() % 2 != 0) above.push_back(nodes.back());
      nodes = std::move(above);
    }
    return nodes.front();
  }

  double weight(std::size_t rank) const { return weights_[rank]; }

 private:
  struct Dot {
    double value = 0;
    double magnitude = 0;  ///< of the sum's terms, which rounding errors go with
  };

  /// Of the vectors of two nodes, without their exponents.
  Dot dot(const Node& a, const Node& b) const {
    Dot sum;
    for (std::size_t i = a.begin; i < a.end; ++i) {
      for (std::size_t j = b.begin; j < b.end; ++j) {
        const double term = weights_[i] * weights_[j] * gram_.product(i, j);
        sum.value += term;
        sum.magnitude += std::abs(term);
      }
    }
    return sum;
  }

  double square(const Node& a) const {
    const Dot sum = dot(a, a);
    return sum.value < 64 * rounding * sum.magnitude ? 0 : sum.value;  // infinity and NaN stay
  }

  Node combine(const Node& a, const Node& b) {
    const double aa = square(a), bb = square(b);
    // By Cauchy and Schwarz |a.b| <= |a||b|, but for rounding, which must not make a large projection of a small
    // vector.
    const double most = std::sqrt(aa) * std::sqrt(bb) * (1 + 8 * rounding);
    double ab = dot(a, b).value;
    if (ab > most) ab = most;
    if (ab < -most) ab = -most;
    const auto half_projection = [ab](double square) { return square == 0 ? 0 : ab / (2 * square); };

    const double exponent = std::max(a.exponent, b.exponent);
    const double scale_a = power_of_two(a.exponent - exponent), scale_b = power_of_two(b.exponent - exponent);
    multiply(a, scale_a - half_projection(aa) * scale_b);
    multiply(b, scale_b - half_projection(bb) * scale_a);
    return {a.begin, b.end, exponent};
  }

  void multiply(const Node& node, double factor) {
    for (std::size_t rank = node.begin; rank < node.end; ++rank) weights_[rank] *= factor;
  }

  const Gram& gram_;
  std::vector<double> weights_;  // of each rank's vector in the node that it is in
};

}  // namespace

std::vector<AdasumWeight> adasum_weights(const Gram& gram, double scale) {
  Tree tree(gram);
  const double exponent = tree.combine_all().exponent;
  std::vector<AdasumWeight> weights;
  for (std::size_t rank = 0; rank < gram.ranks(); ++rank) {
    const double shift = exponent - gram.exponents[rank];  // never negative
    const double factor = tree.weight(rank) * scale;
    weights.push_back(shift < 900 ? AdasumWeight{factor * power_of_two(shift), 0}
                                  : AdasumWeight{factor, static_cast<int>(shift)});
  }
  return weights;
}

}  // namespace kolo

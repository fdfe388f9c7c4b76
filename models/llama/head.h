#pragma once

#include <cstdint>

#include "models/layers/loss.h"
#include "models/layers/sequences.h"

namespace kolo::models {

/// A last norm, the product with the head, and the loss, computed in groups of rows, so that the memory of logits is
/// bounded. Parameters: NORM.weight [dim], and HEAD.weight [vocabulary, dim] unless that is the embedding's.
class LanguageHead final : public Loss {
 public:
  struct Names {
    std::string_view norm, head;
  };

  /// tied  shares its weight; null: the head has one of its own
  LanguageHead(ParameterList& parameters, const Names& names, std::int64_t dim, std::int64_t vocabulary, double eps,
               Embedding* tied);

  std::int64_t classes() const override { return vocabulary_; }
  std::unique_ptr<Kept> make_kept() const override;
  void forward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept, const Context& context) override;
  Flow backward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept, const Context& context) override;
  Tensor logits(const Flow& in, std::int64_t first, std::int64_t count, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;

 private:
  std::int64_t group(const Compute& compute) const;
  Tensor logits(const Flow& in, std::int64_t first, std::int64_t count, DType dtype, Kept& kept,
                const Context& context);

  std::int64_t dim_, vocabulary_;
  double eps_;
  bool tied_;
  std::size_t gain_, head_;
};

}  // namespace kolo::models

#include "models/layers/loss.h"

namespace kolo::models {
namespace {

struct NothingKept final : Kept {
  std::size_t bytes() const override { return 0; }
};

}  // namespace

Tensor rows_of(const Tensor& tensor, std::int64_t width, std::int64_t first, std::int64_t count) {
  return part_of(tensor, first * width, {count, width});
}

std::unique_ptr<Kept> CrossEntropy::make_kept() const {
  return std::make_unique<NothingKept>();
}

void CrossEntropy::forward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept&, const Context& context) {
  context.compute.cross_entropy(as_rows(in.x, classes_), targets, 1, {}, sums);
}

Flow CrossEntropy::backward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept&, const Context& context) {
  const Tensor logits = as_rows(in.x, classes_);
  const Tensor d = context.workspace.beside(context.compute, in.x, logits.shape);
  context.compute.cross_entropy(logits, targets, context.pass.scale, d, sums);
  return {.x = reshaped(d, in.x.shape)};
}

Tensor CrossEntropy::logits(const Flow& in, std::int64_t first, std::int64_t count, Kept&, const Context&) {
  return rows_of(in.x, classes_, first, count);
}

}  // namespace kolo::models

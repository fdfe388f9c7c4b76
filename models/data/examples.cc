#include "models/data/examples.h"

#include <algorithm>
#include <numeric>

namespace kolo::models {

Range even_share(std::int64_t examples, int ranks, int rank) {
  const std::int64_t each = examples / ranks, left = examples % ranks;
  return {each * rank + std::min<std::int64_t>(rank, left), each + (rank < left ? 1 : 0)};
}

Range EvaluationShare::at(std::int64_t number) const {
  const std::int64_t begin = number * all_batches() / batches() * batch;
  return {range.first + begin, std::min(batch, range.count - begin)};
}

std::int64_t EvaluationShare::examples() const {
  std::int64_t sum = 0;
  for (std::int64_t number = 0; number < batches(); ++number) sum += at(number).count;
  return sum;
}

BatchResult evaluate(Model& model, const Examples& examples, const EvaluationShare& share,
                     const std::function<bool(const Batch& batch)>& on_batch) {
  BatchStorage storage;
  BatchResult sum;
  for (std::int64_t number = 0; number < share.batches(); ++number) {
    const Range those = share.at(number);
    std::vector<std::int64_t> indices(static_cast<std::size_t>(those.count));
    std::iota(indices.begin(), indices.end(), those.first);
    examples.gather(indices, 0, storage);
    if (on_batch && !on_batch(storage.view())) break;
    const BatchResult part = model.evaluate(storage.view());
    sum.loss_sum += part.loss_sum;
    sum.correct += part.correct;
    sum.targets += part.targets;
  }
  return sum;
}

}  // namespace kolo::models

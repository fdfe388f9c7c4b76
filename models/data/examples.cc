#include "models/data/examples.h"

#include <algorithm>
#include <numeric>

namespace kolo::models {

Range even_share(std::int64_t examples, int ranks, int rank) {
  const std::int64_t each = examples / ranks, left = examples % ranks;
  return {each * rank + std::min<std::int64_t>(rank, left), each + (rank < left ? 1 : 0)};
}

BatchResult evaluate(Model& model, const Examples& examples, const Range& range, std::int64_t batch,
                     const std::function<void(std::int64_t)>& progress) {
  BatchStorage storage;
  BatchResult sum;
  for (std::int64_t done = 0; done < range.count; done += batch) {
    if (progress) progress(done);
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(batch, range.count - done)));
    std::iota(indices.begin(), indices.end(), range.first + done);
    examples.gather(indices, 0, storage);
    const BatchResult part = model.evaluate(storage.view());
    sum.loss_sum += part.loss_sum;
    sum.correct += part.correct;
    sum.targets += part.targets;
  }
  return sum;
}

}  // namespace kolo::models

#include "models/data/loader.h"

#include <numeric>
#include <vector>

namespace kolo::models {

Batch BatchLoader::gather(std::span<const std::int64_t> examples) {
  images_.gather(examples, 0, storage_);
  return storage_.view();
}

Batch BatchLoader::load(const Range& range) {
  std::vector<std::int64_t> examples(static_cast<std::size_t>(range.count));
  std::iota(examples.begin(), examples.end(), range.first);
  return gather(examples);
}

}  // namespace kolo::models

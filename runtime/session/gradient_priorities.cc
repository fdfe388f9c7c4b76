#include "runtime/session/gradient_priorities.h"

namespace kolo {

/// Gradients that are split, and those that are not, each in the order of their submission: a bucket is full as soon as
/// it holds `fusion_bytes`.
std::vector<int> gradient_priorities(std::span<const std::size_t> order, std::span<const GradientSize> gradients,
                                     std::int64_t fusion_bytes) {
  std::vector<int> priorities(gradients.size());
  for (const bool split : {false, true}) {
    std::vector<std::size_t> bucket;
    std::int64_t bytes = 0;
    for (std::size_t place = 0; place < order.size(); ++place) {
      if (gradients[order[place]].split != split) continue;
      if (bytes >= fusion_bytes) {
        bucket.clear();
        bytes = 0;
      }
      bucket.push_back(order[place]);
      bytes += gradients[order[place]].bytes;
      for (const std::size_t index : bucket)
        priorities[index] = static_cast<int>(place + 1) - static_cast<int>(order.size());
    }
  }
  return priorities;
}

}  // namespace kolo

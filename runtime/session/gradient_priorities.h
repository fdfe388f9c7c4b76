#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kolo {

/// A gradient as it travels.
struct GradientSize {
  std::int64_t bytes = 0;
  bool split = false;  ///< is reduce-scattered: shares no bucket with those that are not
};

/// Priorities for gradients, as `gradients`: the order in which the next pass needs the parameters. The one that it
/// needs first has 0, the others less, and all that fill a bucket have that of the first needed among them: for tensors
/// of different priorities share no bucket. So as many buckets run as without priorities.
///
/// order         of their submission, which is the reverse of the order of need
/// fusion_bytes  Config::fusion_bytes
std::vector<int> gradient_priorities(std::span<const std::size_t> order, std::span<const GradientSize> gradients,
                                     std::int64_t fusion_bytes);

}  // namespace kolo

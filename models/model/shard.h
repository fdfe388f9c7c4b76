#pragma once

#include <cstddef>

namespace kolo::models {

/// The elements of a parameter that a rank updates: all of them, or its part where ranks share the work out (the
/// optimizer's state in parts is stage 1 of ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054).
struct Shard {
  std::size_t first = 0;
  std::size_t count = 0;
  bool split = false;  ///< other ranks update the rest
};

}  // namespace kolo::models

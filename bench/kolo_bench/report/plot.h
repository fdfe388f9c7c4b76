#pragma once

#include <string>

#include "bench/kolo_bench/report/result.h"

namespace kolo::bench {

/// Bus bandwidth (algorithm bandwidth for one rank) and time over the size, both axes logarithmic, for kolo and its
/// peers, as an SVG picture. Of several types, operations or roots the first.
std::string plot(const Report& report);

}  // namespace kolo::bench

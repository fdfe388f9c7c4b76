#pragma once

#include <cstddef>

namespace kolo::testing {

/// What guarded devices hold at the moment, over all of them.
std::size_t guarded_bytes();

}  // namespace kolo::testing

#pragma once

#include "ops/shm/chunk_layout.h"

namespace kolo {

/// Memory as small as can be: every path, every border, and many chunks, with little data; results past the cache.
inline constexpr ShmTuning tiny_memory{
    .ring = 512, .chunk = 256, .hot = 64, .in_flight = 4, .whole = 100, .large = 5000, .direct = 200};
inline constexpr ShmTuning small_memory{
    .ring = 10048, .chunk = 4096, .hot = 256, .in_flight = 8, .whole = 300, .large = 2000, .direct = 1000};

}  // namespace kolo

#pragma once

#include <cstddef>

namespace kolo {

/// Copies like memcpy, to memory that nobody reads soon: where the processor can, the copy does not take the place of other data
/// in its caches, and does not read what it overwrites. Other threads may read it after finish_copies_past_cache() and then any
/// synchronisation.
void copy_past_cache(void* to, const void* from, std::size_t bytes);
void finish_copies_past_cache();

}  // namespace kolo

#pragma once

#include <cstddef>

namespace kolo {

/// Where copies go. `memory` is for what nobody reads soon: where the processor can, the copy does not take the place
/// of other data in its caches, and does not read what it overwrites. Other threads may read it after finish_copies()
/// and then any synchronisation.
enum class CopyTo : unsigned char { cache, memory };

/// Copies like memcpy.
void copy(void* to, const void* from, std::size_t bytes, CopyTo where);

void finish_copies();

}  // namespace kolo

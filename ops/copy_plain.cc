#include "ops/copy.h"

#include <cstring>

namespace kolo {

void copy_past_cache(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void finish_copies_past_cache() {}

}  // namespace kolo

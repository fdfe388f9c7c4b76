#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kolo {

/// Hands each element to `handle`, once; if that throws, those behind it remain.
template <class T, class Handle>
void take_each(std::vector<T>& all, Handle&& handle) {
  if (all.empty()) return;
  std::size_t next = 0;
  try {
    while (next < all.size()) handle(std::move(all[next++]));
  } catch (...) {
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(next));
    throw;
  }
  all.clear();
}

}  // namespace kolo

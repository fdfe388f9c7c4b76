#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include <kolo/error.h>
#include <kolo/store.h>

namespace kolo {

inline constexpr std::size_t longest_key = 512, longest_value = 16 << 20;

// What the stores have in common.

inline void check_entry(std::string_view key, std::size_t value_bytes) {
  if (!key.empty() && key.size() <= longest_key && value_bytes <= longest_value) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a store takes keys of 1 to {} bytes and values of at most {} bytes; this key has {}, its "
                          "value {}",
                          longest_key, longest_value, key.size(), value_bytes));
}

[[noreturn]] inline void throw_no_value(std::string_view key) {
  throw Error(ErrorCode::stalled, fmt::format("the store has no value of '{}' (nobody has set it in time)", key));
}

/// The sum of what a key has and `n`, which wraps around. Throws Error{invalid_argument} if it has no number.
inline std::int64_t added(std::string_view key, const std::optional<Store::Bytes>& value, std::int64_t n) {
  std::int64_t number = 0;
  if (value && value->size() != sizeof number)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the store's value of '{}' is no number ({} bytes), nothing can be added to it", key,
                            value->size()));
  if (value) std::memcpy(&number, value->data(), sizeof number);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(n));
}

}  // namespace kolo

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace kolo::detail {

/// FNV-1a, 64 bits (Fowler, Noll & Vo). The same on every machine: ranks may compare hashes, and files store them.
class Hash {
 public:
  /// One step per number of any size.
  constexpr Hash& add(std::uint64_t number) {
    state_ = (state_ ^ number) * 0x100000001b3u;
    return *this;
  }
  constexpr Hash& add(std::string_view text) {
    for (const char byte : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(byte)));
    return *this;
  }
  constexpr Hash& add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) add(std::to_integer<std::uint64_t>(byte));
    return *this;
  }

  constexpr std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

/// For containers of std::string keys, for look-ups by string_view. Differs from program to program.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// The mixing steps of SplitMix64 (Steele, Lea & Flood 2014): neighbouring numbers get unrelated results.
constexpr std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

}  // namespace kolo::detail

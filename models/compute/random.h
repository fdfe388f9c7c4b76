#pragma once

#include <array>
#include <cstdint>

#include <kolo/detail/hash.h>

namespace kolo::models {

/// SplitMix64 (Steele, Lea & Flood 2014): one step of the generator whose state is `state`.
constexpr std::uint64_t split_mix(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  return detail::mixed(state);
}

/// xoshiro256** 1.0 (Blackman & Vigna 2018, doi:10.1145/3460772): the same numbers on every platform.
///
/// `stream` picks one of 2^64 unrelated sequences of a seed (an epoch, a parameter, an image): the four words of state
/// are the next ones of a SplitMix64 whose state is split_mix(seed) + stream.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0);
  /// Continues from a state; not all words may be 0.
  explicit Random(const std::array<std::uint64_t, 4>& state) : state_(state) {}

  /// 64 random bits.
  std::uint64_t next();
  /// Uniform among 0 … bound-1, without bias; bound is positive.
  std::uint64_t below(std::uint64_t bound);
  /// Uniform in [0, 1): a multiple of 2^-24.
  float uniform();
  /// Uniform in [-bound, bound).
  float symmetric(float bound) { return bound * (2 * uniform() - 1); }
  /// Normal, except that the tails end at ±6: the sum of 12 uniform numbers of 16 bits, minus 6. The same bits on every
  /// platform.
  float normal();

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace kolo::models

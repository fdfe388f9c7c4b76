#include "models/compute/random.h"

#include <bit>

namespace kolo::models {

Random::Random(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t state = split_mix(seed) + stream;
  for (std::uint64_t& word : state_) word = split_mix(state);
}

std::uint64_t Random::next() {
  auto& s = state_;
  const std::uint64_t result = std::rotl(s[1] * 5, 7) * 9;
  const std::uint64_t shifted = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= shifted;
  s[3] = std::rotl(s[3], 45);
  return result;
}

std::uint64_t Random::below(std::uint64_t bound) {
  const std::uint64_t biased = -bound % bound;  // 2^64 mod bound: that many values more would favour small remainders
  std::uint64_t value = next();
  while (value < biased) value = next();
  return value % bound;
}

float Random::uniform() {
  return static_cast<float>(next() >> 40) * 0x1p-24f;
}

float Random::normal() {
  std::int64_t sum = 0;
  for (int draw = 0; draw < 3; ++draw) {
    for (std::uint64_t bits = next(), part = 0; part < 4; ++part, bits >>= 16)
      sum += static_cast<std::int64_t>(bits & 0xffff);
  }
  constexpr std::int64_t mean = 12 * 0xffff / 2;
  return static_cast<float>(sum - mean) * 0x1p-16f;
}

}  // namespace kolo::models

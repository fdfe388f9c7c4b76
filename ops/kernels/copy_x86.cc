// Past the cache: whole cache lines of the destination are written with non-temporal stores, what is left at both ends
// as usual. Other threads may see such stores later than ordinary ones that follow, unless there is a fence in between.

#include "ops/kernels/copy.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include <kolo/detail/cpu.h>

namespace kolo {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t worthwhile = 1024;  // below, the lines cut at both ends outweigh the others

void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += line) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* destination = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(destination, a);
    _mm_stream_si128(destination + 1, b);
    _mm_stream_si128(destination + 2, c);
    _mm_stream_si128(destination + 3, d);
  }
}

__attribute__((target("avx2"))) void stream_lines_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += line) {
    const auto* source = reinterpret_cast<const __m256i*>(from + at);
    auto* destination = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(destination, a);
    _mm256_stream_si256(destination + 1, b);
  }
}

}  // namespace

void copy(void* to, const void* from, std::size_t bytes, CopyTo where) {
  if (bytes < worthwhile || where == CopyTo::cache) {
    std::memcpy(to, from, bytes);
    return;
  }
  static const auto stream =
      detail::instruction_set() >= detail::InstructionSet::avx2 ? stream_lines_avx2 : stream_lines;
  auto* destination = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t head = (line - reinterpret_cast<std::uintptr_t>(destination) % line) % line;
  const std::size_t lines = (bytes - head) / line * line;
  std::memcpy(destination, source, head);
  stream(destination + head, source + head, lines);
  std::memcpy(destination + head + lines, source + head + lines, bytes - head - lines);
}

void finish_copies() {
  _mm_sfence();
}

}  // namespace kolo

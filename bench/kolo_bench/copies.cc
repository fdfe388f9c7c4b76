// Stores that go past the caches: a copy then reads and writes each byte once, where an ordinary one reads the destination, too.

#include <cstring>

#include "bench/kolo_bench/contestant.h"
#include "bench/kolo_bench/storage.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace kolo::bench {
namespace {

/// Both aligned to 64 bytes.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t done = 0;
#if defined(__x86_64__)
  for (; done + 64 <= bytes; done += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* destination = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1), c = _mm_load_si128(source + 2),
                  d = _mm_load_si128(source + 3);
    _mm_stream_si128(destination, a);
    _mm_stream_si128(destination + 1, b);
    _mm_stream_si128(destination + 2, c);
    _mm_stream_si128(destination + 3, d);
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

class Copies final : public Contestant {
 public:
  Copies(std::size_t bytes, bool huge)
      : bytes_(bytes), from_(Storage::private_pages(bytes, huge)), to_(Storage::private_pages(bytes, huge)) {}

  std::string_view name() const override { return "copy"; }
  void run() override { copy_past_caches(to_.data(), from_.data(), bytes_); }

 private:
  std::size_t bytes_;
  Storage from_, to_;
};

}  // namespace

std::unique_ptr<Contestant> copies(std::size_t bytes, bool huge) {
  return std::make_unique<Copies>(bytes, huge);
}

}  // namespace kolo::bench

// Block b of rank a's input and block a of rank b's input change places: one of the two ranks copies both ways, so that
// nobody reads what the other has overwritten already when they work in place. Of the pairs that a rank is in it serves
// every second one (a serves the pair if a + b is odd and a < b, or if a + b is even and a > b). A pair where `a` works
// in place goes through a small buffer.

#include <array>
#include <cstring>

#include "ops/local_share.h"

namespace kolo {
namespace {

constexpr std::size_t buffer_bytes = 4096;

bool serves(int a, int b) {
  return ((a + b) % 2 != 0) == (a < b);
}

/// Moves `bytes` bytes from b_in to a_out and from a_in to b_out; either may work in place.
void exchange(const std::byte* a_in, std::byte* a_out, const std::byte* b_in, std::byte* b_out, std::size_t bytes) {
  std::array<std::byte, buffer_bytes> buffer;
  for (std::size_t begin = 0; begin < bytes; begin += buffer_bytes) {
    const std::size_t length = std::min(buffer_bytes, bytes - begin);
    const bool in_place = a_in == a_out;
    const std::byte* from_a = a_in + begin;
    if (in_place) from_a = static_cast<std::byte*>(std::memcpy(buffer.data(), a_in + begin, length));
    std::memcpy(a_out + begin, b_in + begin, length);
    std::memcpy(b_out + begin, from_a, length);
  }
}

}  // namespace

void local_all_to_all(LocalShare& share) {
  const std::size_t size = size_of(share.signature().dtype);
  const int a = share.rank();
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    const Slice block_a = share.block(index, a);
    for (int b = 0; b < share.ranks(); ++b) {
      if (a == b)
        share.copy(index, {a, &BucketTensor::in, block_a.begin}, {a, &BucketTensor::out, block_a.begin},
                   block_a.count());
      if (a == b || !serves(a, b)) continue;
      const Slice block_b = share.block(index, b);
      share.in_chunks(block_a.count(), [&](std::int64_t begin, std::int64_t count) {
        const BucketTensor& mine = share.tensor(a, index);
        const BucketTensor& theirs = share.tensor(b, index);
        exchange(address(mine.in, block_b.begin + begin), address(mine.out, block_b.begin + begin),
                 address(theirs.in, block_a.begin + begin), address(theirs.out, block_a.begin + begin),
                 static_cast<std::size_t>(count) * size);
      });
    }
  }
}

}  // namespace kolo

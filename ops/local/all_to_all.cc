// Block b of rank a's input and block a of rank b's input change places: one of the two ranks copies both ways, so that
// nobody reads what the other has overwritten already when they work in place. Of the pairs that a rank is in it serves
// every second one (a serves the pair if a + b is odd and a < b, or if a + b is even and a > b). A pair where `a` works
// in place goes through a small buffer. Where blocks differ nobody works in place, and every rank fetches what it gets.

#include <array>
#include <cstring>

#include "ops/local/share.h"

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

void exchange_with(LocalShare& share, std::size_t index, int peer) {
  const int me = share.rank();
  const std::size_t size = size_of(share.signature().dtype);
  const std::int64_t to_peer =
      share.in_block(index, me, peer).begin;  // of my input; equal blocks: the same in my output
  const std::int64_t to_me = share.in_block(index, peer, me).begin;
  share.in_chunks(share.in_block(index, me, peer).count(), [&](std::int64_t begin, std::int64_t count) {
    const BucketTensor& mine = share.tensor(me, index);
    const BucketTensor& theirs = share.tensor(peer, index);
    exchange(address(mine.in, to_peer + begin), address(mine.out, to_peer + begin), address(theirs.in, to_me + begin),
             address(theirs.out, to_me + begin), static_cast<std::size_t>(count) * size);
  });
}

void fetch_from(LocalShare& share, std::size_t index, int peer) {
  const int me = share.rank();
  const ElementRange from = share.in_block(index, peer, me);
  share.copy(index, {peer, &BucketTensor::in, from.begin},
             {me, &BucketTensor::out, share.out_block(index, peer, me).begin}, from.count());
}

}  // namespace

void local_all_to_all(LocalShare& share) {
  const int me = share.rank();
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    const bool equal = !share.bucket().tensors[index].rows;
    for (int peer = 0; peer < share.ranks(); ++peer) {
      if (peer == me || !equal)
        fetch_from(share, index, peer);
      else if (serves(me, peer))
        exchange_with(share, index, peer);
    }
  }
}

}  // namespace kolo

// Operations that only copy. Of broadcast rank r copies slice r of the flattened list from the root's input into all
// outputs. Of all_gather and scatter each rank fetches what it gets; nobody else writes to its output, and it writes
// nowhere else. Of gather each rank puts its block into the root's output; of send_recv the receiver fetches. What a
// rank reads in place it, or nobody, overwrites: with itself.

#include "ops/local/share.h"

namespace kolo {
namespace {

LocalPlace input(int rank, std::int64_t offset) {
  return {rank, &BucketTensor::in, offset};
}
LocalPlace output(int rank, std::int64_t offset) {
  return {rank, &BucketTensor::out, offset};
}

}  // namespace

void local_broadcast(LocalShare& share) {
  const Bucket& bucket = share.bucket();
  const int root = share.signature().root;
  const ElementRange slice = slice_of(bucket.elements(), size_of(share.signature().dtype), share.ranks(), share.rank());
  for_each_segment(bucket, share.ranks(), position_at(bucket, share.ranks(), slice.begin), slice.count(),
                   [&](const Segment& segment) {
                     for (int rank = 0; rank < share.ranks(); ++rank) {
                       share.copy(segment.tensor, input(root, segment.offset), output(rank, segment.offset),
                                  segment.count);
                     }
                   });
}

void local_all_gather(LocalShare& share) {
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    for (int rank = 0; rank < share.ranks(); ++rank) {
      const ElementRange block = share.out_block(index, rank, share.rank());
      share.copy(index, input(rank, 0), output(share.rank(), block.begin), block.count());
    }
  }
}

void local_gather(LocalShare& share) {
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    const ElementRange mine = share.out_block(index, share.rank(), share.signature().root);
    share.copy(index, input(share.rank(), 0), output(share.signature().root, mine.begin), mine.count());
  }
}

void local_send_recv(LocalShare& share) {
  const int root = share.signature().root;
  if (share.rank() == root) return;
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    share.copy(index, input(root, 0), output(share.rank(), 0), share.bucket().tensors[index].out.elements());
  }
}

void local_scatter(LocalShare& share) {
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    const ElementRange mine = share.in_block(index, share.signature().root, share.rank());
    share.copy(index, input(share.signature().root, mine.begin), output(share.rank(), 0), mine.count());
  }
}

}  // namespace kolo

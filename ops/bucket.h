#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <kolo/backend.h>

namespace kolo {

/// See Bucket::token; who reads this is told by others what differs.
[[noreturn]] void throw_other_token();

/// Elements [begin, end) of a list.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};

/// Elements of one step of the first dimension.
std::int64_t row_elements(const Shape& shape);

/// Of the kinds where ranks have blocks: see in_block() and out_block().
ElementRange in_block_of_rank(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer);
ElementRange out_block_of_rank(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer);

/// The elements of rank `me`'s input that rank `peer` gets: all of it where ranks have no blocks, or all get the same.
inline ElementRange in_block(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer) {
  return has_blocks(kind) ? in_block_of_rank(kind, tensor, ranks, me, peer) : ElementRange{0, tensor.in.elements()};
}

/// The elements of rank `me`'s output that come from rank `peer`: all of it where that is no part.
inline ElementRange out_block(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer) {
  return has_blocks(kind) ? out_block_of_rank(kind, tensor, ranks, me, peer) : ElementRange{0, tensor.in.elements()};
}

/// What averages of a group of `ranks` ranks, `absent` of which do not take part, divide by: see Bucket::divide_by.
constexpr int divisor_of(const Signature& signature, int ranks, std::size_t absent = 0) {
  return signature.divide_by_group ? ranks : ranks - static_cast<int>(absent);
}

/// A tensor's length in a bucket's flattened list: a list of elements, the same on every rank. Where
/// ranks have blocks it is a list of elements of a block, which stands for those at the same place in the blocks of all
/// ranks; the longest block counts, and others may lack its last elements.
std::int64_t longest_block(OpKind kind, const BucketTensor& tensor, int ranks);
inline std::int64_t flat_length(OpKind kind, const BucketTensor& tensor, int ranks) {
  return has_blocks(kind) ? longest_block(kind, tensor, ranks) : tensor.in.elements();
}

/// Consecutive elements of one tensor of a bucket.
struct Segment {
  std::size_t tensor = 0;   ///< index in the bucket
  std::int64_t offset = 0;  ///< first element, counted within the tensor, or within each block of it
  std::int64_t count = 0;
};

/// A place in a bucket's flattened list.
struct BucketPosition {
  std::size_t tensor = 0;
  std::int64_t offset = 0;  ///< within the tensor, or within each block of it
};

/// The place of element `index` of the flattened list; the end if the list is shorter.
BucketPosition position_at(const Bucket& bucket, int ranks, std::int64_t index);

/// Calls visit(Segment) for the runs that make up the `count` elements from `position` on, and returns the place after
/// them.
template <class Visit>
BucketPosition for_each_segment(const Bucket& bucket, int ranks, BucketPosition position, std::int64_t count,
                                Visit visit) {
  while (count > 0 && position.tensor < bucket.tensors.size()) {
    const std::int64_t left =
        flat_length(bucket.signature.kind, bucket.tensors[position.tensor], ranks) - position.offset;
    const std::int64_t length = std::min(left, count);
    if (length > 0) visit(Segment{position.tensor, position.offset, length});
    count -= length;
    position = length == left ? BucketPosition{position.tensor + 1, 0}
                              : BucketPosition{position.tensor, position.offset + length};
  }
  return position;
}

/// The address of element `offset`.
inline std::byte* address(const Tensor& tensor, std::int64_t offset) {
  return static_cast<std::byte*>(tensor.data) + static_cast<std::size_t>(offset) * size_of(tensor.dtype);
}

/// Cuts `elements` into `parts` slices of equal size, rounded up to cache lines of 64 bytes, and returns number `part`:
/// the last ones may be shorter or empty. Slices never share a cache line if the list begins on one.
inline ElementRange slice_of(std::int64_t elements, std::size_t element_bytes, int parts, int part) {
  if (parts == 1) return {0, elements};
  const auto line = static_cast<std::int64_t>(64 / element_bytes);
  const std::int64_t lines = elements / line + (elements % line != 0);
  const std::int64_t length = (lines / parts + (lines % parts != 0)) * line;
  return {std::min(part * length, elements), std::min((part + 1) * length, elements)};
}

}  // namespace kolo

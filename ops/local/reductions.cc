// Rank r reduces one part of the elements, straight out of all ranks' inputs: of all_reduce and reduce slice r of the
// flattened list, into all ranks' outputs or the root's; of reduce_scatter its own rows, into its own output. It alone
// touches that part, in all ranks' memory, so inputs and outputs may be the same.

#include <span>

#include "ops/kernels/reduce.h"
#include "ops/local/share.h"

namespace kolo {
namespace {

/// Reduces `count` elements of tensor `index` that begin at `offset` of the inputs, into the first `outputs`
/// destinations that `destination(i, begin)` gives for elements from `begin` on.
template <class Destination>
void reduce_inputs(LocalShare& share, std::size_t index, std::int64_t offset, std::int64_t count, int outputs,
                   Destination destination) {
  const Reduction reduction = reduction_of(share.signature(), share.bucket().divide_by);
  share.in_chunks(count, [&](std::int64_t begin, std::int64_t length) {
    share.sources.clear();
    for (int rank : share.present()) share.sources.push_back(address(share.tensor(rank, index).in, offset + begin));
    for (int i = 0; i < outputs; ++i) share.destinations[static_cast<std::size_t>(i)] = destination(i, begin);
    reduce(reduction, share.sources, std::span(share.destinations).first(static_cast<std::size_t>(outputs)),
           static_cast<std::size_t>(length));
  });
}

/// Reduces this rank's slice of the list into the outputs of `outputs` ranks, from `first` on.
void reduce_slice(LocalShare& share, int first, int outputs) {
  const Bucket& bucket = share.bucket();
  const ElementRange slice = slice_of(bucket.elements(), size_of(share.signature().dtype), share.ranks(), share.rank());
  for_each_segment(bucket, share.ranks(), position_at(bucket, share.ranks(), slice.begin), slice.count(),
                   [&](const Segment& segment) {
                     reduce_inputs(
                         share, segment.tensor, segment.offset, segment.count, outputs, [&](int i, std::int64_t begin) {
                           return address(share.tensor(first + i, segment.tensor).out, segment.offset + begin);
                         });
                   });
}

}  // namespace

void local_all_reduce(LocalShare& share) {
  reduce_slice(share, 0, share.ranks());
}

void local_reduce(LocalShare& share) {
  reduce_slice(share, share.signature().root, 1);
}

void local_reduce_scatter(LocalShare& share) {
  for (std::size_t index = 0; index < share.bucket().tensors.size(); ++index) {
    const ElementRange mine = share.in_block(index, share.rank(), share.rank());
    const Tensor& out = share.bucket().tensors[index].out;
    reduce_inputs(share, index, mine.begin, mine.count(), 1,
                  [&](int, std::int64_t begin) { return address(out, begin); });
  }
}

}  // namespace kolo

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kolo/backend.h>

namespace kolo::bench {

/// What one iteration of a measurement runs, on this rank: one operation, or several on tensors of their own.
struct Work {
  Signature signature;  ///< the shape is that of the first lane's input
  bool in_place = false;
  std::vector<BucketTensor> lanes;  ///< operations that are equal but for their memory
  std::string name;                 ///< what the runtime is to call it; the lanes are numbered

  std::size_t bytes_in() const { return lanes.front().in.bytes(); }
  std::size_t bytes_out() const { return lanes.front().out.bytes(); }
};

/// Memory of `lane_count` lanes: for each as many bytes of input and of output as its largest operation needs.
struct Area {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t in_stride = 0;
  std::size_t out_stride = 0;
  int lanes = 1;
  Device device{};
};

/// The tensors of an operation of that size in `area`, whose strides are large enough. Where ranks have blocks and the
/// operation is in place, the smaller tensor is this rank's block of the larger; otherwise `in` and `out` are the same
/// memory.
Work make_work(const Signature& signature, std::int64_t bytes, bool in_place, int rank, int ranks, const Area& area);

}  // namespace kolo::bench

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/backend.h>
#include <kolo/op.h>

namespace kolo::bench {

/// A collective that can be measured.
struct Collective {
  OpKind kind;
  std::string_view name;  ///< "all_reduce"
  std::string_view perf;  ///< nccl-tests' program: "all_reduce_perf"
  bool out_of_place;      ///< whether input and output can be different memory; all but send_recv can be in place
};

/// All of them, in the order of the help text.
std::span<const Collective> collectives();

/// By name; also as nccl-tests, MPI and OSU write it: "allreduce", "all_reduce_perf", "osu_allreduce", "bcast". Null if
/// there is none.
const Collective* find_collective(std::string_view word);

/// The elements of a measurement of a size.
///
/// The size is that of the larger tensor on a rank, as in nccl-tests: of the output for all_gather and gather, of the
/// input for reduce_scatter and scatter. Where ranks have blocks these are equal, and of 16 bytes times a whole number
/// unless they are smaller.
struct Extent {
  std::int64_t in = 0;     ///< elements of this rank's input
  std::int64_t out = 0;    ///< elements of this rank's output
  std::int64_t count = 0;  ///< as in nccl-tests: elements of the tensor, or of a block
  std::int64_t bytes = 0;  ///< the actual size: at most the one asked for
};

/// Empty (count 0) if not even one element fits.
Extent extent_of(OpKind kind, std::int64_t bytes, DType dtype, int ranks);

/// Bus bandwidth over algorithm bandwidth: bytes that each rank's link carries, on the shortest way, for each byte of
/// the size. Source: nccl-tests, doc/PERFORMANCE.md. Nothing for one rank.
std::optional<double> bus_factor(OpKind kind, int ranks);

/// "float", "half", "int8": nccl-tests' names; kolo's where NCCL has none.
std::string_view nccl_name(DType dtype);
std::string_view nccl_name(ReduceOp op);

/// One iteration of a measurement on this rank: one operation, or several on separate tensors.
struct Work {
  Signature signature;  ///< the shape is that of the first lane's input
  bool in_place = false;
  std::vector<BucketTensor> lanes;  ///< operations that are equal but for their memory
  std::string name;                 ///< the tensor's name in the runtime; the lanes are numbered

  std::size_t bytes_in() const { return lanes.front().in.bytes(); }
  std::size_t bytes_out() const { return lanes.front().out.bytes(); }
};

/// Memory of all lanes: for each the input and the output of its largest operation.
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

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <kolo/op.h>

namespace kolo::bench {

/// A collective that can be measured.
struct Collective {
  OpKind kind;
  std::string_view name;  ///< "all_reduce"
  std::string_view perf;  ///< what nccl-tests calls its program: "all_reduce_perf"
  bool out_of_place;      ///< whether input and output can be different memory; all but send_recv can be in place
};

/// All of them, in the order of the help text.
std::span<const Collective> collectives();

/// By name; also as nccl-tests, MPI and OSU write it: "allreduce", "all_reduce_perf", "osu_allreduce", "bcast". Null if
/// there is none.
const Collective* find_collective(std::string_view word);

/// How many elements a measurement of a size has.
///
/// The size is that of the larger tensor on a rank, as in nccl-tests: of the output for all_gather and gather, of the
/// input for reduce_scatter and scatter. Where ranks have blocks these are equal, and of 16 bytes times a whole number
/// unless they are smaller.
struct Extent {
  std::int64_t in = 0;     ///< elements of this rank's input
  std::int64_t out = 0;    ///< elements of this rank's output
  std::int64_t count = 0;  ///< what nccl-tests' column of that name says: elements of the tensor, or of a block
  std::int64_t bytes = 0;  ///< the size that comes out: at most the one asked for
};

/// Empty (count 0) if not even one element fits.
Extent extent_of(OpKind kind, std::int64_t bytes, DType dtype, int ranks);

/// Bus bandwidth over algorithm bandwidth: what a link of each rank carries if data take the shortest way, for each
/// byte of the size. Source: nccl-tests, doc/PERFORMANCE.md. Nothing for one rank.
std::optional<double> bus_factor(OpKind kind, int ranks);

/// "float", "half", "int8": nccl-tests' names; kolo's where it has none.
std::string_view nccl_name(DType dtype);
std::string_view nccl_name(ReduceOp op);

}  // namespace kolo::bench

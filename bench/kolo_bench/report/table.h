#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/report/result.h"

namespace kolo::bench {

/// How results are printed: line by line as they come.
class Table {
 public:
  virtual ~Table() = default;
  virtual std::string header(const WorldInfo& world) = 0;
  /// The results of one size: out-of-place, in-place, or both in this order.
  virtual std::string row(const std::vector<Result>& placements) = 0;
  virtual std::string footer(const Report& report) = 0;
};

/// Prints nccl-tests 2.19's columns; non-data lines start with #, columns of the peers and the copy limit follow, then
/// the method by which kolo moved the bytes, of both placements, out-of-place first where they differ. The
/// half of a placement that was not measured says N/A. `peers`: the names that every result is compared with.
std::unique_ptr<Table> nccl_table(const Options& options, const std::vector<std::string>& peers);

/// Prints the columns of OSU's collective benchmarks with -f, then P50, P95, P99 and the peers': out-of-place, or
/// in-place if that is all there is. With --overlap: Overall, Compute, Pure Comm., Overlap. With --beside:
/// the large operation without and with small ones, what it keeps of its bandwidth, P50, P90, P99 of the small ones.
std::unique_ptr<Table> osu_table(const Options& options, const std::vector<std::string>& peers);

/// One line per result, with names in the first.
std::unique_ptr<Table> csv_table(const Options& options, const std::vector<std::string>& peers);

/// The one that the options name.
std::unique_ptr<Table> make_table(const Options& options, const std::vector<std::string>& peers);

/// "# Rank 0 on host: GPU 0 [0000:0f:00.0] name" for each rank, and the most memory that was in use on each GPU; empty
/// if buffers lie on hosts.
std::string gpu_lines(const WorldInfo& world);
std::string peak_memory_line(const WorldInfo& world);

/// Schema 1, with a line end.
std::string to_json(const Report& report);

/// Bus bandwidth (algorithm bandwidth for one rank) and time over the size, both axes logarithmic, for kolo and its
/// peers, as an SVG picture. Of several types, operations or roots the first.
std::string plot(const Report& report);

}  // namespace kolo::bench

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/op.h>

#include "apps/cli/statistics.h"

namespace kolo::bench {

using cli::Percentiles;
using cli::percentiles;

/// Communication behind computation, as OSU defines it; medians.
struct Overlap {
  double overall_us = 0;    ///< start, compute, wait
  double compute_us = 0;    ///< of which the computation
  double pure_comm_us = 0;  ///< start and wait, with nothing in between

  /// max(0, 100 - (overall - compute) / pure_comm * 100).
  double percent() const;
};

/// Small operations beside a large one, in another group.
struct Beside {
  std::int64_t bytes = 0;  ///< of a small one
  std::int64_t count = 0;  ///< of small ones
  Percentiles us;          ///< of a small one
  double with_us = 0;      ///< median of the large one with them
  double alone_us = 0;     ///< and without

  /// Of the large one's bandwidth.
  double percent_kept() const { return with_us > 0 ? alone_us / with_us * 100 : 0; }
};

/// Another candidate's times for the same work in the same run.
struct PeerResult {
  std::string name;
  Percentiles time_us;
  double ratio = 0;                     ///< its median over kolo's
  std::optional<std::int64_t> wrong{};  ///< elements, on all ranks; nothing if not checked
  std::optional<Overlap> overlap{};
  double mean_of_total_us = 0;  ///< as Result's
  std::string version{};        ///< "Open MPI 4.1.4"
  std::string algorithm{};      ///< the one that was asked for; "default": the peer chose; empty: nobody asked
};

/// One size and placement.
struct Result {
  std::string op;  ///< "all_reduce"
  std::int64_t bytes = 0;
  std::int64_t count = 0;  ///< see Extent
  DType dtype = DType::f32;
  std::optional<ReduceOp> redop{};
  int root = -1;  ///< -1: has none
  bool in_place = false;
  std::string mode;  ///< "throughput", "isolated", "latency", "overlap", "beside"
  std::int64_t iterations = 0;
  Percentiles time_us;                  ///< of one operation
  double mean_of_total_us = 0;          ///< time of all iterations by their number, combined over the ranks after that
  std::string method{};                 ///< how kolo moved the bytes in the last of them; empty: not known
  double algbw_gbs = 0;                 ///< at the median
  std::optional<double> busbw_gbs{};    ///< nothing for one rank
  std::optional<std::int64_t> wrong{};  ///< elements, on all ranks; nothing if not checked
  int slowest_rank = 0;
  double slowest_share = 0;
  std::optional<double> copy_limit_gbs{};
  std::vector<PeerResult> compare{};
  std::optional<Overlap> overlap{};
  std::optional<Beside> beside{};
  std::string buckets{};     ///< name of the list
  std::int64_t tensors = 0;  ///< of the list

  /// The peer of that name; null: there is none.
  const PeerResult* peer(std::string_view name) const;
};

/// Where a rank's buffers lie.
struct DeviceInfo {
  int index = 0;
  std::string bus = "cpu";           ///< "0000:0f:00.0"
  std::string name = "host memory";  ///< "NVIDIA H100 80GB HBM3"
  std::int64_t peak_bytes = 0;       ///< of the GPU's memory in use, by all processes, as sampled
};

/// The world and the subject of a measurement.
struct WorldInfo {
  std::string collective;  ///< "all_reduce"
  std::string version;
  int ranks = 1;
  int nodes = 1;
  std::vector<std::string> hosts{};  ///< by rank
  std::vector<int> pids{};           ///< by rank
  std::string mpi{};                 ///< library and version
  std::string mpi_threads{};         ///< MPI's thread level: "single"
  std::string peer_version{};        ///< of what kolo is compared with: "Open MPI 4.1.4"; empty: nothing
  std::string path{};                ///< "session", "ordered", "direct"
  std::string backend{};             ///< the first in the list: "mpi"
  std::string memory{};              ///< "private", "session"
  bool huge_pages = false;
  std::string device = "cpu";
  std::vector<DeviceInfo> devices{};  ///< by rank
  std::string nccl{};                 ///< version; empty if it is not used
  std::string nccl_algo{};            ///< as NCCL_ALGO names it; "auto": NCCL's choice
  int cores = 0;                      ///< of rank 0's machine
};

/// The cost of a rank's idle session.
struct IdleRank {
  int rank = 0;
  double cpu_percent = 0;  ///< of a core
  std::int64_t mpi_calls = 0;
};

/// Times of packing and unpacking all tensors of a list on a GPU.
struct PackResult {
  std::string name;
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  Percentiles copy_us{}, pack_us{}, unpack_us{};
  std::optional<std::int64_t> wrong{};  ///< bytes, on all ranks; nothing if not checked

  /// Bytes packed in a second, in GB; memory carries each of them twice.
  double gbs(const Percentiles& us) const { return us.p50 > 0 ? static_cast<double>(bytes) / us.p50 / 1e3 : 0; }
  /// Of the copy's bandwidth.
  double share(const Percentiles& us) const { return us.p50 > 0 ? copy_us.p50 / us.p50 : 0; }
};

/// All results of a run.
struct Report {
  WorldInfo world;
  std::vector<Result> results{};
  double idle_seconds = 0;
  std::vector<PackResult> pack{};
  std::vector<IdleRank> idle{};  ///< by rank; empty unless that was measured
};

/// Fills in algbw_gbs and busbw_gbs from the rest. `ranks`: of the world.
void fill_in_bandwidth(Result& result, OpKind kind, int ranks);

/// Puts the fastest of the peers, among those that were not found wrong, behind the first, as `name`.
void add_best_peer(Result& result, const std::string& name);

/// The mean bus bandwidth of all results that have one, as nccl-tests print it; 0 if none has.
double average_busbw(const std::vector<Result>& results);

}  // namespace kolo::bench

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/kolo_bench/measure/buffer_placement.h"
#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/ranks.h"

namespace kolo::bench {

/// The implementation that kolo is compared with, on the same buffers. Making and destroying one are collective.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  /// "Open MPI 4.1.4".
  virtual std::string version() const = 0;
  /// The reason why it has no call for the work; nothing if it has one.
  virtual std::optional<std::string> refuses(const Work& work) const = 0;
  /// Requires that refuses(work) is empty. Must not outlive this. `one_group`: NCCL launches all lanes as one; else one
  /// by one.
  virtual std::unique_ptr<Asynchronous> candidate(const Work& work, const std::string& name, bool one_group = true) = 0;
  /// Its other ways to do the work, with names of their own; as candidate().
  virtual std::vector<std::unique_ptr<Asynchronous>> alternatives(const Work& /*work*/) { return {}; }
  /// Whether it leaves the result in the same place as kolo.
  virtual bool checkable(const Work& work) const = 0;
};

/// The peer of --compare; null without one. Errors: UsageError, reported.
std::unique_ptr<Peer> make_peer(const Options& options, const Ranks& ranks, const BufferPlacement& place);

/// MPI's library and version in its own words, "Open MPI v4.1.4", and in those of all peers, "Open MPI 4.1.4".
std::string mpi_library();
std::string mpi_version();

/// The MPI calls of this process since count_mpi_calls(), of every function that this program uses.
std::int64_t mpi_calls();

/// Starts counting.
void count_mpi_calls();

}  // namespace kolo::bench

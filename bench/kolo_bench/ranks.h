#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/agreement.h"
#include "ops/mpi_base/handles.h"

namespace kolo::bench {

/// The ranks of the benchmark. They agree over MPI, on a separate communicator, without the code that is measured. All
/// functions but the first five are collective. Errors: Error if MPI fails.
class Ranks final : public cli::RankGroup {
 public:
  explicit Ranks(MPI_Comm comm);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int nodes() const { return nodes_; }
  int rank_on_node() const { return rank_on_node_; }
  MPI_Comm comm() const { return comm_.get(); }

  void barrier() const;

  int least(int mine) const override;
  std::vector<std::string> gather(const std::string& mine) const override;

  /// The sum of a number over all ranks; over those of this node.
  std::int64_t sum(std::int64_t mine) const;
  std::int64_t sum_on_node(std::int64_t mine) const;

  /// Element by element, over all ranks.
  void combine(std::span<double> values, MPI_Op op) const;
  /// For each element the rank whose value is the largest.
  std::vector<int> slowest(std::span<const double> values) const;

 private:
  MpiComm comm_;
  MpiComm node_;
  int rank_ = 0;
  int size_ = 1;
  int nodes_ = 1;
  int rank_on_node_ = 0;
};

}  // namespace kolo::bench

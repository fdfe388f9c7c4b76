#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/mpi_base/handles.h"

namespace kolo::bench {

/// All ranks end, on account of a problem that one of them has printed. Thrown on every rank alike.
struct Stopped {};

/// The ranks of the benchmark, and how they agree: by MPI, on a communicator of their own, so that nothing of what is
/// measured is used. All functions but the first five are collective. Errors: Error if MPI fails.
class Ranks {
 public:
  explicit Ranks(MPI_Comm comm);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int nodes() const { return nodes_; }
  int rank_on_node() const { return rank_on_node_; }
  MPI_Comm comm() const { return comm_.get(); }

  void barrier() const;

  /// Every rank's text, by rank.
  std::vector<std::string> gather(const std::string& mine) const;

  /// The sum of a number over all ranks; over those of this node.
  std::int64_t sum(std::int64_t mine) const;
  std::int64_t sum_on_node(std::int64_t mine) const;

  /// Element by element, over all ranks.
  void combine(std::span<double> values, MPI_Op op) const;
  /// For each element the rank whose value is the largest.
  std::vector<int> slowest(std::span<const double> values) const;

  /// Runs `work` on this rank, and returns once every rank has done so without an exception. Otherwise the lowest rank
  /// on which it threw prints why, and Stopped is thrown on every rank.
  void together(const std::function<void()>& work) const;

  /// Makes sure that the values are equal on all ranks, which pass the same names. Otherwise rank 0 prints the first
  /// that differs, and Stopped is thrown on every rank.
  void check_same(const std::vector<std::pair<std::string, std::string>>& mine) const;

 private:
  MpiComm comm_;
  MpiComm node_;
  int rank_ = 0;
  int size_ = 1;
  int nodes_ = 1;
  int rank_on_node_ = 0;
};

/// Writes "kolo-bench: TEXT" as one line to stderr, in one piece. Bytes that are no text come out as \xNN.
void print_problem(const std::string& text);

/// This process's rank as the launcher's environment has it; 0 without a launcher.
int launched_rank();

}  // namespace kolo::bench

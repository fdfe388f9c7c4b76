#pragma once

#include <string>
#include <vector>

#include <kolo/op.h>

#include "bench/kolo_bench/ranks.h"

namespace kolo::bench {

/// One of Open MPI's algorithms, and a communicator whose blocking collectives of one kind use it.
struct MpiAlgorithm {
  std::string name;  ///< Open MPI's: "recursive_doubling"
  MpiComm comm;
};

/// Has Open MPI heed algorithms that are forced. Before MPI is initialised, and before there are threads.
void let_mpi_algorithms_be_forced();

/// All algorithms that Open MPI's `tuned` component has for the call of `kind`, but those that cannot serve these
/// ranks: see README. Collective. Errors: UsageError, reported, with another MPI, or where there are none.
std::vector<MpiAlgorithm> mpi_algorithms(const Ranks& ranks, OpKind kind);

}  // namespace kolo::bench

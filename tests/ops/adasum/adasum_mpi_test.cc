// adasum over the mpi backend, ranks as processes. Through sessions: session_ranks_test.cc.

#include "ops/mpi/backend.h"
#include "tests/runtime/session/adasum_programs.h"

namespace kolo {
namespace {

// Tiny chunks: every stage takes many of them.
constexpr MpiTuning tiny{{1024, 256}, 128, 3};

void run(const MpiTuning& tuning, void (*program)(Backend& backend, int ranks, int rank)) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto backend = mpi_backend(MPI_COMM_WORLD, tuning);
  program(*backend, ranks, rank);
}

TEST(AdasumMpi, OfBuckets) {
  run({}, testing::run_adasum_buckets);
  run(tiny, testing::run_adasum_buckets);
}

TEST(AdasumMpi, FusedAndNot) {
  run({}, testing::run_adasum_fused_and_not);
  run(tiny, testing::run_adasum_fused_and_not);
}

TEST(AdasumMpi, AmongOthers) {
  run({}, testing::run_adasum_among_others);
  run(tiny, testing::run_adasum_among_others);
}

}  // namespace
}  // namespace kolo

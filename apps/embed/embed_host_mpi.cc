// A host program with its own MPI: it initialises and finalises it, and uses the communicator that it lends to kolo.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <kolo/kolo.h>
#include <kolo/mpi.h>

namespace {

/// Sums the ranks' numbers 1, 2, ... with kolo while the host's own sum of the same is under way. Returns whether both
/// agree.
bool sums_agree(int number) {
  const auto config = kolo::Config::from_environment();
  kolo::Session session(kolo::mpi_world(MPI_COMM_WORLD, config), config);
  std::vector<double> values(1000, number);
  auto handle = session.all_reduce_async("values", kolo::view(values));
  double host_sum = number;
  MPI_Allreduce(MPI_IN_PLACE, &host_sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  handle.wait();
  for (const double value : values) {
    if (value != host_sum) return false;
  }
  std::printf("embed_host_mpi: rank %d of %d: the sum is %g\n", session.rank(), session.size(), host_sum);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int failed = 1;
  try {
    failed = sums_agree(rank + 1) ? 0 : 1;
  } catch (const kolo::Error& error) {
    std::fprintf(stderr, "embed_host_mpi: %s\n", error.what());
  }
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);  // MPI outlives the session
  MPI_Finalize();
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

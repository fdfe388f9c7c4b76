// main() of tests that run under mpirun; the verdict is that of all ranks.

#include <mpi.h>

#include <algorithm>

#include "ops/mpi_base/handles.h"
#include "tests/support/processes.h"

namespace kolo::testing {

Gathering& processes() {
  static MpiGathering all(MPI_COMM_WORLD);
  return all;
}

bool over_mpi() {
  return true;
}

}  // namespace kolo::testing

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int failed = kolo::testing::run_tests();
  const auto all_failed = kolo::testing::processes().all_values(failed);
  MPI_Finalize();
  return *std::ranges::max_element(all_failed);
}

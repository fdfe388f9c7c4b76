// The C API under mpirun, and over a communicator of the program's own.

#include <mpi.h>
#include <stdlib.h>

#include <kolo/kolo_c_mpi.h>

#include "tests/runtime/c_api/c_api_check.h"

static void run_over_a_communicator(void) {
  kolo_session* session = NULL;
  kolo_world* world = NULL;
  int rank = -1, reversed = -1, size = 0;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);
  IS_NULL(kolo_mpi_world(comm, NULL, NULL));
  OK(kolo_mpi_world(comm, NULL, &world));
  OK(kolo_session_create_in(world, &session));
  OK(kolo_world_destroy(world));
  OK(kolo_session_rank(session, &reversed));
  CHECK(reversed == size - 1 - rank);
  abandon_one(session);
  MPI_Comm_free(&comm);
}

int main(int argc, char** argv) {
  run_without_ranks();
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  run_as_processes();
  run_over_a_communicator();
  MPI_Finalize();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

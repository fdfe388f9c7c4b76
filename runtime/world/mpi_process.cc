#include "runtime/world/mpi_process.h"

#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include <kolo/error.h>

#include "ops/mpi_base/handles.h"
#include "runtime/world/at_exit.h"

namespace kolo {
namespace {

/// Living sessions leave first: MPI_Finalize() waits for ranks that may wait for these sessions.
template <bool finalize>
void at_exit(int status, void* process) {
  if (process != reinterpret_cast<void*>(getpid()) || !mpi_usable()) return;  // a child made by fork(), say
  leave_sessions(status != 0);
  if constexpr (finalize) MPI_Finalize();
}

}  // namespace

bool mpi_usable() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

void ensure_mpi() {
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  int level = MPI_THREAD_SINGLE;
  if (!initialized) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    on_exit(at_exit<true>, reinterpret_cast<void*>(getpid()));
  } else {
    static std::once_flag registered;
    std::call_once(registered, [] { on_exit(at_exit<false>, reinterpret_cast<void*>(getpid())); });
    check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(
        ErrorCode::invalid_argument,
        std::string("MPI was initialised for one thread (") +
            (level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE") +
            "), and a session calls it from several; initialise it with MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …)");
  }
}

}  // namespace kolo

#include "runtime/world/mpi_process.h"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include <kolo/error.h>

#include "ops/host/process.h"
#include "ops/mpi_base/handles.h"
#include "runtime/world/at_exit.h"

namespace kolo {
namespace {

constexpr int patience = 20;  // seconds

/// MPI_Finalize() waits for all ranks. Where this program has failed, or a rank is gone, some may never come to their
/// end, and the launcher may end the job as soon as one process has: so this one waits until the others have had time
/// to say why they failed.
void finalize_mpi(int status) {
  try {
    if (status != 0 || have_lost_ranks()) {
      std::thread([status] {
        std::this_thread::sleep_for(std::chrono::seconds(patience));
        std::fprintf(stderr,
                     "kolo: process %d ends with code %d, though other ranks have not come to their end for %d s; the "
                     "launcher may end them\n",
                     static_cast<int>(getpid()), status, patience);
        std::fflush(nullptr);
        std::_Exit(status);
      }).detach();
    }
  } catch (const std::system_error&) {  // no thread, no limit
  }
  MPI_Finalize();
}

/// Living sessions leave first: MPI_Finalize() waits for ranks that may wait for these sessions.
template <bool finalize>
void at_exit(int status, void* process) {
  if (process != reinterpret_cast<void*>(getpid()) || !mpi_usable()) return;  // a child made by fork(), say
  leave_sessions(status != 0);
  if constexpr (finalize) finalize_mpi(status);
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
  refuse_forked();
  notice_forks();
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized) {
    int level = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    on_exit(at_exit<true>, reinterpret_cast<void*>(getpid()));
  } else {
    static std::once_flag registered;
    std::call_once(registered, [] { on_exit(at_exit<false>, reinterpret_cast<void*>(getpid())); });
  }
}

std::string why_no_session_over_mpi() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level >= MPI_THREAD_SERIALIZED) return "";
  return std::string("MPI was initialised for one thread (") +
         (level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE") +
         "), and a session calls it from several; initialise it with MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …)";
}

}  // namespace kolo

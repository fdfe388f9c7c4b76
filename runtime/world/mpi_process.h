#pragma once

#include <string>

namespace kolo {

/// Makes MPI usable in this process: initialises it with MPI_THREAD_MULTIPLE unless the host program has done so, and
/// finalizes it at exit (not before, so that session → destroy → session works; of a program that has failed, or has
/// lost a rank, waits for the others for 20 s at most). Sessions that live at exit leave before MPI is finalized, also
/// if the host program finalizes it at exit.
void ensure_mpi();

/// What is wrong with the thread level that MPI has: of less than MPI_THREAD_SERIALIZED. Empty: nothing.
std::string why_no_session_over_mpi();

/// Whether MPI can be called now.
bool mpi_usable();

}  // namespace kolo

#pragma once

namespace kolo {

/// Makes MPI usable in this process: initialises it with MPI_THREAD_MULTIPLE if nobody did, and then finalizes it at
/// exit (what kolo initialised ends once, so that session → destroy → session works). Sessions that live at exit leave
/// before that, also where the host program finalizes MPI at exit. Throws Error{invalid_argument} if the host program
/// initialised it with less than MPI_THREAD_SERIALIZED.
void ensure_mpi();

/// Whether MPI can be called now.
bool mpi_usable();

}  // namespace kolo

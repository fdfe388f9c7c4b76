#pragma once

/// The one part of the C API that needs MPI's header.

#include <mpi.h>

#include <kolo/kolo_c_session.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A world of the ranks of `comm`, which is duplicated, so that the host program's own messages on it stay separate.
/// Collective over `comm`. `config` null: the environment's settings. For a session MPI must be initialised with
/// MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED if the host makes no MPI call while operations are in flight; with
/// less it is refused, as KOLO_INVALID_ARGUMENT.
int kolo_mpi_world(MPI_Comm comm, const kolo_config* config, kolo_world** world);

#ifdef __cplusplus
}
#endif

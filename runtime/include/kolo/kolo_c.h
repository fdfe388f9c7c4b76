#pragma once

/// kolo for C (C11) and languages that can call C: all of <kolo/kolo.h>, except custom backends.
///
///     kolo_session* session = NULL;
///     if (kolo_session_create(NULL, &session) != KOLO_OK) { fprintf(stderr, "%s\n", kolo_last_error()); return 1; }
///     kolo_tensor tensor = {.data = grad, .ndim = 1, .shape = {1000}, .dtype = KOLO_F32};
///     kolo_all_reduce_options average = {.op = KOLO_AVERAGE};
///     kolo_all_reduce(session, "grad", &tensor, &tensor, &average);
///     kolo_session_destroy(session);
///
/// Every function except kolo_status_name() and kolo_last_error() returns a kolo_status. Its result goes through its
/// last argument, and is null on failure. A pointer may be null only where that is documented. No exception leaves a
/// function, and none may leave a callback. Worlds over an MPI communicator: <kolo/kolo_c_mpi.h>.

#include <kolo/kolo_c_base.h>
#include <kolo/kolo_c_collectives.h>
#include <kolo/kolo_c_data_parallel.h>
#include <kolo/kolo_c_session.h>
#include <kolo/kolo_c_store.h>

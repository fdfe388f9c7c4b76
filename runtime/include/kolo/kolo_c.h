#pragma once

/// kolo for C (C11) and for whatever can call C. It can do all that <kolo/kolo.h> can, but for custom backends.
///
///     kolo_session* session = NULL;
///     if (kolo_session_create(NULL, &session) != KOLO_OK) { fprintf(stderr, "%s\n", kolo_last_error()); return 1; }
///     kolo_tensor tensor = {.data = grad, .ndim = 1, .shape = {1000}, .dtype = KOLO_F32};
///     kolo_all_reduce_options average = {.op = KOLO_AVERAGE};
///     kolo_all_reduce(session, "grad", &tensor, &tensor, &average);
///     kolo_session_destroy(session);
///
/// Every function returns a kolo_status, but for kolo_status_name() and kolo_last_error(). What a function makes comes
/// back through its last argument, which is null where it fails. No pointer may be null unless it says so. No exception
/// leaves a function, and none may leave a callback. Over a communicator of MPI's: <kolo/kolo_c_mpi.h>.

#include <kolo/kolo_c_base.h>
#include <kolo/kolo_c_collectives.h>
#include <kolo/kolo_c_session.h>

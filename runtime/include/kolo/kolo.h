#pragma once

/// All public headers except <kolo/mpi.h>, which needs MPI's header.

#include <kolo/backend.h>
#include <kolo/config.h>
#include <kolo/data_parallel.h>
#include <kolo/device.h>
#include <kolo/device_backend.h>
#include <kolo/dlpack.h>
#include <kolo/dtype.h>
#include <kolo/error.h>
#include <kolo/float16.h>
#include <kolo/group.h>
#include <kolo/handle.h>
#include <kolo/op.h>
#include <kolo/reduce_fn.h>
#include <kolo/session.h>
#include <kolo/store.h>
#include <kolo/tensor.h>
#include <kolo/world.h>

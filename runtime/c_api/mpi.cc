#include <kolo/kolo_c_mpi.h>
#include <kolo/mpi.h>

#include "runtime/c_api/parts.h"

using kolo::c_api::guarded;
using kolo::c_api::result;
using kolo::c_api::settings_of;

int kolo_mpi_world(MPI_Comm comm, const kolo_config* config, kolo_world** world) {
  return guarded([&] {
    kolo_world*& made = result(world, "world");
    const kolo::Config settings = settings_of(config);
    made = new kolo_world{kolo::mpi_world(comm, settings), settings};
  });
}

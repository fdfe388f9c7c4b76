// What stands in the place of MPI in a build without it.

#include <fmt/format.h>

#include <kolo/error.h>

#include "runtime/world/launcher_world.h"

namespace kolo {

World mpi_launcher_world(const Launched& launched, const Config& config) {
  if (launched.ranks <= 1) return solo_world(config);
  if (!launched.address.empty() && launched.port > 0) return store_launcher_world(launched, config);
  throw Error(
      ErrorCode::backend,
      fmt::format("the launcher started {} ranks ({}), which would meet over MPI, and kolo was built without it "
                  "(KOLO_MPI=OFF); start the program with torchrun, or set MASTER_ADDR and MASTER_PORT",
                  launched.ranks, launched.variable));
}

}  // namespace kolo

// What stands in the place of MPI in a build without it: MPI's part in a library of its own, if it is there.

#include <dlfcn.h>
#include <fmt/format.h>

#include <optional>
#include <string>

#include <kolo/error.h>

#include "runtime/world/launcher_world.h"
#include "runtime/world/mpi_module.h"

namespace kolo {
namespace {

struct Module {
  decltype(&kolo_mpi_module_world) world = nullptr;
  std::string why_not{};
};

/// Opened once, and for good. Open MPI's own parts look for its functions among those of the whole process.
const Module& mpi_module() {
  static const Module opened = [] {
    Module found;
    if (void* const library = dlopen("libkolo_mpi.so", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE))
      found.world = reinterpret_cast<decltype(found.world)>(dlsym(library, "kolo_mpi_module_world"));
    if (!found.world) found.why_not = dlerror();
    return found;
  }();
  return opened;
}

}  // namespace

std::string why_no_mpi() {
  return mpi_module().why_not;
}

World mpi_launcher_world(const Launched& launched, const Config& config) {
  if (launched.ranks <= 1) return solo_world(config);
  if (const Module& mpi = mpi_module(); mpi.world) {
    std::optional<World> made;
    mpi.world(launched, config, made);
    return std::move(*made);
  }
  if (!launched.address.empty() && launched.port > 0) return store_launcher_world(launched, config);
  throw Error(
      ErrorCode::backend,
      fmt::format("the launcher started {} ranks ({}), which would meet over MPI, and kolo was built without it "
                  "(KOLO_MPI=OFF; {}); start the program with torchrun, or set MASTER_ADDR and MASTER_PORT",
                  launched.ranks, launched.variable, why_no_mpi()));
}

}  // namespace kolo

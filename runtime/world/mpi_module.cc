#include "runtime/world/mpi_module.h"

#include "runtime/world/launcher_world.h"

void kolo_mpi_module_world(const kolo::Launched& launched, const kolo::Config& config,
                           std::optional<kolo::World>& made) {
  made.emplace(kolo::mpi_launcher_world(launched, config));
}

#include <fmt/format.h>

#include <kolo/mpi.h>

#include "ops/local_backend.h"
#include "ops/mpi_backend.h"
#include "ops/registry.h"
#include "runtime/control_mpi.h"
#include "runtime/mpi_process.h"
#include "runtime/world_parts.h"

namespace kolo {

World mpi_world(MPI_Comm comm, const Config& config) {
  ensure_mpi();
  auto parts = std::make_unique<WorldParts>();
  std::string note;
  parts->control = std::make_unique<MpiChannel>(comm, config.fake_nodes, &note);
  if (!note.empty() && parts->control->rank() == 0) config.report(note);
  std::vector<BackendOffer> offers{{"mpi", [=] { return mpi_backend(comm); }}};
  if (parts->control->topology().size() == 1) {
    offers.insert(offers.begin(), {"local", [] { return std::move(local_backends(1, {}).front()); }});
  }
  parts->backends = make_backends(config.backend, offers);
  return World(std::move(parts));
}

World launcher_world(const Config& config) {
  const char* variable = "";
  const int launched = launched_ranks(&variable);
  if (launched == 0 && !mpi_usable()) return solo_world(config);
  ensure_mpi();
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (launched > 1 && size == 1) {
    throw Error(ErrorCode::backend,
                fmt::format("the launcher started {} ranks ({}) but MPI sees one (it belongs to another MPI than the one kolo was "
                            "built with); start the program with that MPI's own mpirun",
                            launched, variable));
  }
  return mpi_world(MPI_COMM_WORLD, config);
}

}  // namespace kolo

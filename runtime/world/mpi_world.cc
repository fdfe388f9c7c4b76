#include <fmt/format.h>

#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <kolo/error.h>
#include <kolo/mpi.h>

#include "ops/mpi_base/handles.h"
#include "ops/registry/mpi_processes.h"
#include "runtime/world/launcher.h"
#include "runtime/world/launcher_world.h"
#include "runtime/world/mpi_process.h"
#include "runtime/world/parts.h"
#include "runtime/world/process_world.h"
#include "runtime/world/startup_watch.h"

namespace kolo {
namespace {

/// The ranks of `comm` as ranks of MPI_COMM_WORLD, which are the launcher's.
std::vector<int> launcher_ranks(MPI_Comm comm) {
  const MpiGroupHandle members = group_of(comm), all = group_of(MPI_COMM_WORLD);
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size)), result(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  check_mpi(MPI_Group_translate_ranks(members.get(), size, ranks.data(), all.get(), result.data()),
            "MPI_Group_translate_ranks");
  return result;
}

/// How a StartupWatch ends these ranks, if it may. Before MPI is there, the launcher ends a job when one of its
/// processes fails.
std::function<void(int)> comm_ender(const Config& config, MPI_Comm comm) {
  if (!config.may_exit.value_or(true)) return nullptr;
  return [comm](int code) {
    if (mpi_usable()) MPI_Abort(comm, code);
  };
}

/// ensure_mpi(), watched: MPI_Init() waits for ranks that have not reached it.
void ensure_mpi_watched(const Config& config, const Launched& launched) {
  std::vector<int> ranks(static_cast<std::size_t>(launched.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const StartupWatch watch(config, launched.rank, std::move(ranks), comm_ender(config, MPI_COMM_WORLD));
  ensure_mpi();
}

}  // namespace

World mpi_world(MPI_Comm comm, const Config& config) {
  ensure_mpi();
  MpiGathering gathering(comm);
  const StartupWatch watch(config, gathering.rank(), launcher_ranks(comm), comm_ender(config, comm));
  std::function<void(int)> end_job;
  if (config.may_exit.value_or(true))
    end_job = [own = std::make_shared<MpiComm>(duplicate(comm))](int code) { MPI_Abort(own->get(), code); };
  World world = process_world(gathering, std::move(end_job), backends_over_mpi(comm), config);
  world.parts().why_no_session = why_no_session_over_mpi();
  return world;
}

std::string why_no_mpi() {
  return {};
}

World mpi_launcher_world(const Launched& launched, const Config& config) {
  if (launched.ranks == 0 && !mpi_usable()) return solo_world(config);
  ensure_mpi_watched(config, launched);
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (launched.ranks > 1 && size == 1) {
    throw Error(
        ErrorCode::backend,
        fmt::format(
            "the launcher started {} ranks ({}) but MPI sees one (it belongs to another MPI than the one kolo was "
            "built with); start the program with that MPI's own mpirun",
            launched.ranks, launched.variable));
  }
  return mpi_world(MPI_COMM_WORLD, config);
}

}  // namespace kolo

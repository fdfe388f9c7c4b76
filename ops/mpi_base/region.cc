#include "ops/mpi_base/region.h"

#include <unistd.h>

#include <array>

#include <kolo/error.h>

#include "ops/mpi_base/handles.h"

namespace kolo {

std::shared_ptr<Region> shared_region(MPI_Comm comm, std::size_t bytes, std::string* why) {
  int rank = 0, size = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::array<int, 2> origin{static_cast<int>(getpid()), -1};  // process and descriptor
  std::shared_ptr<SharedRegion> region;
  std::string problem;
  const auto attempt = [&](auto make) {
    try {
      region = make();
    } catch (const Error& error) {
      problem = error.what();
    }
  };
  if (rank == 0) attempt([&] { return SharedRegion::create(bytes); });
  if (region) origin[1] = region->descriptor();
  check_mpi(MPI_Bcast(origin.data(), 2, MPI_INT, 0, comm), "MPI_Bcast");
  if (rank != 0 && origin[1] >= 0) attempt([&] { return SharedRegion::open(origin[0], origin[1], bytes); });
  const int mine = problem.empty() ? size : rank;
  int lowest = size;  // that failed
  check_mpi(MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (why && lowest == rank) *why = problem;
  if (lowest < size) return nullptr;
  region->close_descriptor();
  return region;
}

}  // namespace kolo

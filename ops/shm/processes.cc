// MPI only helps to set groups up: the members' communicator hands the lowest one's region around, and is given up
// then.

#include "ops/shm/processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <numeric>
#include <utility>
#include <vector>

#include "ops/mpi_base/handles.h"
#include "ops/shm/backend.h"
#include "ops/shm/process_memory.h"

namespace kolo {
namespace {

class ProcessRegions final : public RegionSource {
 public:
  ProcessRegions(MPI_Comm comm, std::function<void(const std::string&)> report)
      : comm_(duplicate(comm)), report_(std::move(report)), memory_(shm_process_memory(pids(comm))) {}

  std::shared_ptr<Region> region_for(const GroupInfo& group, std::size_t bytes) override {
    const MpiComm members = communicator_of(comm_.get(), group);
    std::string why;
    auto region = shared_region(members.get(), bytes, &why);
    if (!why.empty())
      report_(fmt::format("no shared memory for group {}: {}; its tensors travel over MPI", group.name, why));
    return region;
  }
  std::shared_ptr<ShmMemory> memory() override { return memory_; }
  void abandon() noexcept override { (void)comm_.release(); }  // freeing it is collective

 private:
  static std::vector<int> pids(MPI_Comm comm) {
    int size = 0;
    check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    std::vector<int> all(static_cast<std::size_t>(size));
    const int mine = static_cast<int>(getpid());
    check_mpi(MPI_Allgather(&mine, 1, MPI_INT, all.data(), 1, MPI_INT, comm), "MPI_Allgather");
    return all;
  }

  MpiComm comm_;
  std::function<void(const std::string&)> report_;
  std::shared_ptr<ShmMemory> memory_;
};

}  // namespace

std::unique_ptr<Backend> shm_process_backend(MPI_Comm comm, std::span<Doorbell> doorbells,
                                             std::function<void(const std::string&)> report, const ShmTuning* tuning) {
  GroupInfo world{0, "world", {}, 0};
  int size = 0;
  check_mpi(MPI_Comm_rank(comm, &world.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  world.ranks.resize(static_cast<std::size_t>(size));
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  ShmTuning agreed = tuning ? *tuning : tuning_for_machine(size);
  check_mpi(MPI_Bcast(&agreed, sizeof(agreed), MPI_BYTE, 0, comm), "MPI_Bcast");
  return shm_backend(std::make_shared<ProcessRegions>(comm, std::move(report)), world, doorbells, agreed);
}

}  // namespace kolo

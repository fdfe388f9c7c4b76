// What any backend must do, with tensors on real GPUs: over NCCL, and staged. Skipped where there is no GPU, or no
// NCCL. Ranks are processes; where they share a GPU, NCCL needs another NCCL_HOSTID for each (see README), and the GPU
// switches between them several times for every call: DEVICE_TEST_ONE_OF, a prime, leaves a fraction of the calls.

#include <mpi.h>

#include <algorithm>
#include <cstdlib>

#include "ops/mpi_backend.h"
#include "ops/nccl_backend.h"
#include "ops/staged_backend.h"
#include "tests/backend_conformance.h"

namespace kolo {
namespace {

class DeviceHarness final : public Harness {
 public:
  /// `tuning` null: staged.
  explicit DeviceHarness(const NcclTuning* tuning) {
    MPI_Comm_rank(MPI_COMM_WORLD, &world_.rank);
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int rank = 0; rank < size; ++rank) world_.ranks.push_back(rank);
    Card& card = cuda_card(device(0).index);
    if (tuning) {
      backend_ =
          nccl_backend(std::make_shared<NcclRank>(*nccl_table(), card, *tuning), world_, mpi_backend(MPI_COMM_WORLD));
    } else {
      BackendList hosts;
      hosts.push_back(mpi_backend(MPI_COMM_WORLD));
      backend_ = staged_backend(card, std::move(hosts), world_, {});
    }
  }
  int ranks() const override { return world_.size(); }
  Device device(int /*rank*/) const override { return {DeviceKind::cuda, world_.rank % cuda_cards()}; }
  bool exact() const override { return backend_->name() == "staged"; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override { body(world_.rank, *backend_); }

 private:
  GroupInfo world_;
  std::unique_ptr<Backend> backend_;
};

std::size_t calls_per_one_run() {
  const char* const text = std::getenv("DEVICE_TEST_ONE_OF");
  return std::max<std::size_t>(text ? std::strtoul(text, nullptr, 10) : 1, 1);
}

HarnessFactory factory(std::string name, const NcclTuning* tuning) {
  return {std::move(name),
          [tuning]() -> std::unique_ptr<Harness> {
            if (cuda_cards() == 0 || (tuning && !nccl_table())) return nullptr;
            return std::make_unique<DeviceHarness>(tuning);
          },
          2, 1, calls_per_one_run()};
}
const NcclTuning usual{};
const NcclTuning tiny{16 << 10, 4 << 10};
INSTANTIATE_TEST_SUITE_P(Device, BackendConformance,
                         ::testing::Values(factory("nccl", &usual), factory("nccl_tiny", &tiny),
                                           factory("staged", nullptr)),
                         name_of_harness);
INSTANTIATE_TEST_SUITE_P(Device, ExactConformance, ::testing::Values(factory("staged", nullptr)), name_of_harness);

}  // namespace
}  // namespace kolo

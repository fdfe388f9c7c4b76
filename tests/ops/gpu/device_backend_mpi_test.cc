// What any backend must do, with tensors on real GPUs: over NCCL, and staged; and what sessions make of it. Skipped
// where there is no GPU, or no NCCL. Ranks are processes; where they share a GPU, NCCL needs another NCCL_HOSTID for
// each (see README), and the GPU switches between them several times for every call: DEVICE_TEST_ONE_OF, a prime,
// leaves a fraction of the calls.

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <kolo/mpi.h>

#include "ops/mpi/backend.h"
#include "ops/nccl/backend.h"
#include "ops/staged/backend.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/on_gpu.h"
#include "tests/support/thread_ranks.h"

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
    Gpu& gpu = cuda_gpu(device(0).index);
    if (tuning) {
      backend_ =
          nccl_backend(std::make_shared<NcclRank>(*nccl_table(), gpu, *tuning), world_, mpi_backend(MPI_COMM_WORLD));
    } else {
      BackendList hosts;
      hosts.push_back(mpi_backend(MPI_COMM_WORLD));
      backend_ = staged_backend(gpu, std::move(hosts), world_, {});
    }
  }
  int ranks() const override { return world_.size(); }
  Device device(int /*rank*/) const override { return {DeviceKind::cuda, world_.rank % cuda_gpus()}; }
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
            if (cuda_gpus() == 0 || (tuning && !nccl_table())) return nullptr;
            return std::make_unique<DeviceHarness>(tuning);
          },
          2, 1, calls_per_one_run()};
}
const NcclTuning usual{.blocking = true};
const NcclTuning tiny{16 << 10, 4 << 10};  // whose communicators do not block
INSTANTIATE_TEST_SUITE_P(Device, BackendConformance,
                         ::testing::Values(factory("nccl", &usual), factory("nccl_tiny", &tiny),
                                           factory("staged", nullptr)),
                         name_of_harness);
INSTANTIATE_TEST_SUITE_P(Device, ExactConformance, ::testing::Values(factory("staged", nullptr)), name_of_harness);

/// Sessions of all ranks, over NCCL where it can serve them, and staged.
struct DeviceSession : ::testing::TestWithParam<std::string> {
  void SetUp() override {
    if (cuda_gpus() == 0) GTEST_SKIP() << "this machine has no device for it";
    Config config = testing::test_config();
    config.gpu_backend = GetParam();
    session.emplace(mpi_world(MPI_COMM_WORLD, config), config);
    if (GetParam() != "staged" && session->device().kind != DeviceKind::cuda) FAIL() << "not every rank sees a GPU";
  }
  float sum_of(float each) const { return each * static_cast<float>(session->size()); }
  std::optional<Session> session;
};
INSTANTIATE_TEST_SUITE_P(Over, DeviceSession, ::testing::Values("auto", "staged"),
                         [](const auto& info) { return info.param; });

/// Many steps, with nothing but streams between them.
TEST_P(DeviceSession, StreamsWaitAndTheHostDoesNot) {
  std::vector<std::unique_ptr<testing::OnGpu>> grads;
  for (std::size_t i = 0; i < 5; ++i)
    grads.push_back(std::make_unique<testing::OnGpu>(*session, testing::all(100 + i, 1)));
  constexpr int steps = 4;
  for (int step = 0; step < steps; ++step) {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      handles.push_back(
          session->all_reduce_async(fmt::format("grad {}", i), grads[i]->tensor(), {.ready = grads[i]->stream()}));
    }
    for (std::size_t i = 0; i < grads.size(); ++i) handles[i].wait(grads[i]->stream());
  }
  float expected = 1;
  for (int step = 0; step < steps; ++step) expected = sum_of(expected);
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_EQ(grads[i]->read(), testing::all(100 + i, expected)) << i;
}

/// The world's communicator is there: those of groups come out of it, also where a rank takes no part.
TEST_P(DeviceSession, Groups) {
  const auto sum = [&](const std::string& name, const Group& group, float expected) {
    if (!group.info()->member()) return;
    testing::OnGpu grad(*session, testing::all(1000, static_cast<float>(session->rank() + 1)));
    session->all_reduce(name, grad.tensor(), {.group = group, .ready = grad.stream()});
    EXPECT_EQ(grad.read(), testing::all(1000, expected)) << name;
  };
  const int ranks = session->size();
  const auto sum_of_all = static_cast<float>(ranks * (ranks + 1) / 2);
  std::vector<int> everybody(static_cast<std::size_t>(ranks));
  std::iota(everybody.begin(), everybody.end(), 0);
  sum("world", session->world(), sum_of_all);
  const Group again = session->new_group(everybody), last = session->new_group(std::array{ranks - 1});
  for (int step = 0; step < 3; ++step) {
    sum("world", session->world(), sum_of_all);
    sum("again", again, sum_of_all);
    sum("last", last, static_cast<float>(ranks));
  }
  const Group turned = session->split(0, -session->rank());
  sum("turned", turned, sum_of_all);
  session->remove_group(again);
  sum("world", session->world(), sum_of_all);
}

TEST_P(DeviceSession, MemoryOfTheSession) {
  const std::vector<Shape> shapes{Shape{1000}, Shape{3}, Shape{1 << 20}, Shape{77}};
  GradientArena arena(*session, DType::f32, shapes, session->device());
  testing::OnGpu values(*session, testing::all(static_cast<std::size_t>(arena.whole().elements()), 1));
  Gpu& gpu = cuda_gpu(session->device().index);
  gpu.copy(arena.whole().data, values.tensor().data, arena.whole().bytes(), values.stream());
  std::vector<Handle> handles;
  for (const Tensor& tensor : arena.tensors()) {
    handles.push_back(session->all_reduce_async(fmt::format("grad {}", handles.size()), tensor,
                                                {.prescale = 3, .ready = values.stream()}));
  }
  for (Handle& handle : handles) handle.wait(values.stream());
  gpu.copy(values.tensor().data, arena.whole().data, arena.whole().bytes(), values.stream());
  EXPECT_EQ(values.read(), testing::all(static_cast<std::size_t>(arena.whole().elements()), sum_of(3)));
}

}  // namespace
}  // namespace kolo

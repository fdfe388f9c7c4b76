// The shm backend between processes whose memory is adopted by a fake libxpmem.so.0: the real module has not been run.

#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "ops/host/xpmem.h"
#include "ops/mpi_base/handles.h"
#include "ops/shm/memory.h"
#include "ops/shm/processes.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/adopted_memory.h"
#include "tests/support/fake_xpmem.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::all_ranks;
using testing::this_rank;

/// The folder of the fake, of all ranks of the job; and none of its calls fails.
class SharedFolder {
 public:
  SharedFolder() {
    char path[] = "/tmp/fake_xpmem_XXXXXX";
    if (this_rank() == 0 && !mkdtemp(path)) ADD_FAILURE() << "no folder";
    MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = path;
    setenv("FAKE_XPMEM_FOLDER", path, 1);
  }
  ~SharedFolder() {
    fake_xpmem_fail(nullptr, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (this_rank() == 0) std::filesystem::remove_all(path_);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  /// What some rank shows.
  bool empty() const {
    MPI_Barrier(MPI_COMM_WORLD);
    return std::filesystem::is_empty(path_);
  }

 private:
  std::string path_;
};

/// This rank's backend and its memory, which is adopted.
class AdoptingBackend final {
 public:
  explicit AdoptingBackend(std::shared_ptr<const Xpmem> xpmem, std::optional<ShmWay> forced = ShmWay::mapped)
      : adopted_([this](void* data, std::size_t bytes) { backend_->memory()->adopt(data, bytes); }) {
    MpiGathering world(MPI_COMM_WORLD);
    backend_ = shm_process_backend(
        world, {}, [this](const std::string& line) { reports += line; }, std::make_shared<ShmKnown>(ShmKnown{forced}),
        &testing::small_memory, std::move(xpmem));
  }
  Backend& operator*() const { return *backend_; }
  MemorySource& adopted() { return adopted_; }

  /// A few sums of tensors in such memory, out of place, of which the last result is returned.
  std::vector<float> sums() {
    constexpr std::int64_t count = 50000;
    Signature signature = all_reduce_of(DType::f32, ReduceOp::sum);
    const auto memory = [&](float value) {
      auto block = adopted_.allocate(count * sizeof(float), {});
      auto* const values = reinterpret_cast<float*>(block.get());
      for (std::int64_t i = 0; i < count; ++i) values[i] = value / static_cast<float>(1 + i % 97);
      return block;
    };
    std::vector<float> result(count);
    for (int i = 0; i < 3; ++i) {
      const auto in = memory(static_cast<float>(1 + this_rank() + i)), out = memory(0);
      const Tensor input{in.get(), Shape{count}, DType::f32, {}}, output{out.get(), Shape{count}, DType::f32, {}};
      Bucket bucket{signature, {{input, output}}, {}, divisor_of(signature, all_ranks())};
      bucket.signature.shape = input.shape;
      const auto operation = backend_->start(bucket);
      while (!operation->step()) std::this_thread::yield();
      method = operation->method();
      std::memcpy(result.data(), out.get(), count * sizeof(float));
    }
    return result;
  }
  /// By which XPMEM shows some of the memory to peers; 0: it does not.
  Xpmem::Id id() {
    const auto memory = adopted_.allocate(4096, {});
    return dynamic_cast<ShmMemory&>(*backend_->memory()).find(memory.get(), 4096).xpmem;
  }

  std::string reports, method;

 private:
  AdoptedMemory adopted_;  // outlives the backend
  std::unique_ptr<Backend> backend_;
};

class AdoptingProcesses final : public Harness {
 public:
  AdoptingProcesses() : backend_(Xpmem::open("/dev/null")) { EXPECT_NE(backend_.id(), 0); }
  ~AdoptingProcesses() override { EXPECT_EQ(backend_.reports, ""); }
  int ranks() const override { return all_ranks(); }
  MemorySource* memory_of(Backend&) const override { return &backend_.adopted(); }
  void run(const std::function<void(int rank, Backend& backend)>& body) override { body(this_rank(), *backend_); }

 private:
  SharedFolder folder_;
  mutable AdoptingBackend backend_;
};

const auto harness =
    ::testing::Values(HarnessFactory{"adopted", [] { return std::make_unique<AdoptingProcesses>(); }, 2});
INSTANTIATE_TEST_SUITE_P(FakeXpmem, BackendConformance, harness, name_of_harness);
INSTANTIATE_TEST_SUITE_P(FakeXpmem, ExactConformance, harness, name_of_harness);

class FakeXpmemBackend : public ::testing::Test {
 protected:
  SharedFolder folder_;
  const std::vector<float> expected_ = AdoptingBackend(nullptr).sums();
};

TEST_F(FakeXpmemBackend, GivesTheBitsThatOtherSharedMemoryGives) {
  const FakeXpmemCounts before = fake_xpmem_counts();
  {
    AdoptingBackend backend(Xpmem::open("/dev/null"));
    EXPECT_EQ(backend.sums(), expected_);
    EXPECT_EQ(backend.method, "mapped");
    EXPECT_GT(fake_xpmem_counts().made, before.made + 1) << "more than the page that is tried";
    EXPECT_GT(fake_xpmem_counts().attached, before.attached + all_ranks()) << "more than the pages that are tried";
    MPI_Barrier(MPI_COMM_WORLD);
  }
  EXPECT_TRUE(fake_xpmem_counts().balanced());
  EXPECT_TRUE(folder_.empty());
}

TEST_F(FakeXpmemBackend, IsNotUsedWhereOneRankHasNoDevice) {
  for (int without = 0; without < all_ranks(); ++without) {
    AdoptingBackend backend(this_rank() == without ? nullptr : Xpmem::open("/dev/null"));
    EXPECT_EQ(backend.id(), 0);
    EXPECT_TRUE(folder_.empty());
    EXPECT_EQ(backend.sums(), expected_);
    EXPECT_EQ(backend.method, "mapped");
    EXPECT_EQ(backend.reports, "");
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_F(FakeXpmemBackend, IsNotUsedWhereACallFailsOnOneRank) {
  for (const char* call : {"make", "get", "attach", "pages"}) {
    for (int victim = 0; victim < all_ranks(); ++victim) {
      fake_xpmem_fail(this_rank() == victim ? call : nullptr, 0);
      {
        AdoptingBackend backend(Xpmem::open("/dev/null"));
        EXPECT_EQ(backend.id(), 0) << call;
        EXPECT_EQ(backend.sums(), expected_) << call;
        EXPECT_EQ(backend.method, "mapped");
        EXPECT_EQ(backend.reports, "");
        MPI_Barrier(MPI_COMM_WORLD);
      }
      EXPECT_TRUE(fake_xpmem_counts().balanced()) << call;
      EXPECT_TRUE(folder_.empty());
    }
  }
}

TEST_F(FakeXpmemBackend, MemoryThatItHasNoMoreForBecomesOtherSharedMemory) {
  fake_xpmem_fail(this_rank() == 0 ? "make" : nullptr, 1);  // the page that is tried
  {
    AdoptingBackend backend(Xpmem::open("/dev/null"));
    EXPECT_EQ(backend.id() == 0, this_rank() == 0);
    EXPECT_EQ(backend.sums(), expected_);
    EXPECT_EQ(backend.method, "mapped");
    MPI_Barrier(MPI_COMM_WORLD);
  }
  EXPECT_TRUE(fake_xpmem_counts().balanced());
}

TEST_F(FakeXpmemBackend, RanksAgreeToCopyWhatOneCannotAttach) {
  if (all_ranks() == 1) GTEST_SKIP() << "needs peers";
  for (const char* call : {"get", "attach", "pages"}) {
    fake_xpmem_fail(this_rank() == 0 ? call : nullptr, all_ranks());  // the pages that are tried
    {
      AdoptingBackend backend(Xpmem::open("/dev/null"));
      EXPECT_NE(backend.id(), 0);
      EXPECT_EQ(backend.sums(), expected_) << call;
      EXPECT_EQ(backend.method, "ring");
      EXPECT_EQ(backend.reports.find("of another rank's tensors by XPMEM") != std::string::npos, this_rank() == 0)
          << call << ": " << backend.reports;
      MPI_Barrier(MPI_COMM_WORLD);
    }
    EXPECT_TRUE(fake_xpmem_counts().balanced()) << call;
    EXPECT_TRUE(folder_.empty());
  }
}

TEST_F(FakeXpmemBackend, OutlivesThatNothingCanBeGivenBack) {
  for (const char* call : {"detach", "release", "remove"}) {
    fake_xpmem_fail(call, 0);
    AdoptingBackend backend(Xpmem::open("/dev/null"));
    EXPECT_NE(backend.id(), 0);
    EXPECT_EQ(backend.sums(), expected_) << call;
    EXPECT_EQ(backend.method, "mapped");
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_F(FakeXpmemBackend, AdoptsMemoryThatCannotBecomeAFile) {
  constexpr std::size_t bytes = 64 * 4096;
  void* const shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void* const ordinary = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const read_only = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  {
    AdoptingBackend backend(Xpmem::open("/dev/null"));
    const auto memory = (*backend).memory();
    EXPECT_TRUE(memory->adopt(shared, bytes));
    EXPECT_TRUE(memory->adopt(ordinary, bytes / 2));
    EXPECT_THROW(memory->adopt(ordinary, bytes), Error) << "adopted already";
    EXPECT_THROW(memory->adopt(read_only, bytes), Error);
    Bucket bucket{all_reduce_of(DType::f32, ReduceOp::sum), {}, {}, 1};
    const Tensor tensor{shared, Shape{bytes / sizeof(float)}, DType::f32, {}};
    std::fill_n(static_cast<float*>(shared), bytes / sizeof(float), 2.0F);
    bucket.tensors.push_back({tensor, tensor});
    bucket.signature.shape = tensor.shape;
    const auto operation = (*backend).start(bucket);
    while (!operation->step()) std::this_thread::yield();
    EXPECT_EQ(static_cast<float*>(shared)[bytes / sizeof(float) - 1], 2.0F * static_cast<float>(all_ranks()));
    EXPECT_STREQ(operation->method(), all_ranks() > 1 ? "mapped" : "");
    MPI_Barrier(MPI_COMM_WORLD);
  }
  AdoptingBackend without(nullptr);
  EXPECT_THROW((*without).memory()->adopt(
                   mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), bytes),
               Error);
  for (void* memory : {shared, ordinary, read_only}) munmap(memory, bytes);
}

}  // namespace
}  // namespace kolo

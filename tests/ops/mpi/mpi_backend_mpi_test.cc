#include "ops/mpi/backend.h"

#include "tests/ops/backend_conformance.h"

namespace kolo {
namespace {

class MpiHarness final : public Harness {
 public:
  explicit MpiHarness(const MpiTuning& tuning) : backend_(mpi_backend(MPI_COMM_WORLD, tuning)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int ranks() const override { return ranks_; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override { body(rank_, *backend_); }

 private:
  int rank_ = 0;
  int ranks_ = 1;
  std::unique_ptr<Backend> backend_;
};

// Tiny chunks: every path, every border, and many chunks, with little data.
constexpr MpiTuning tiny{{1024, 256}, 128, 3};

const auto harnesses =
    ::testing::Values(HarnessFactory{"default", [] { return std::make_unique<MpiHarness>(MpiTuning{}); }, 8},
                      HarnessFactory{"tiny", [] { return std::make_unique<MpiHarness>(tiny); }, 4, 10});
INSTANTIATE_TEST_SUITE_P(Mpi, BackendConformance, harnesses, name_of_harness);
INSTANTIATE_TEST_SUITE_P(Mpi, ExactConformance, harnesses, name_of_harness);

TEST(MpiBackend, SurvivesBeingAbandoned) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto backend = mpi_backend(MPI_COMM_WORLD);
  Job finished({all_reduce_of(DType::f32, ReduceOp::sum), {1000}, true, 1}, rank, ranks);
  finished.start(*backend);
  finished.finish();
  finished.verify();
  backend->abandon();
  Job late({all_reduce_of(DType::f32, ReduceOp::sum), {1000}, true, 1}, rank, ranks);
  late.start(*backend);
  try {
    (void)late.step();
    FAIL() << "an abandoned backend went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::aborted);
  }
}

/// An operation that failed is gone, and the program has freed its tensor: the message that comes nevertheless stays
/// outside.
TEST(MpiPair, WhatNobodyWaitsForAnyMoreIsNotWritten) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks == 1) return;
  std::vector<float> tensor(100, rank == 0 ? 1.0F : 7.0F);
  Bucket bucket{.signature = {}, .tensors = {{view(tensor), view(tensor)}}};
  bucket.signature.kind = OpKind::send_recv;
  bucket.signature.dtype = DType::f32;
  bucket.signature.root = 0;
  const auto backend = rank < 2 ? mpi_pair_backend(MPI_COMM_WORLD, 1 - rank) : nullptr;
  if (rank == 1) EXPECT_FALSE(backend->start(bucket)->step());
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    const auto operation = backend->start(bucket);
    while (!operation->step()) continue;
  }
  if (rank == 1) {
    std::vector<float> elsewhere(tensor.size());
    MPI_Recv(elsewhere.data(), static_cast<int>(elsewhere.size()), MPI_FLOAT, 0, MPI_ANY_TAG, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    EXPECT_EQ(elsewhere, std::vector<float>(tensor.size(), 1));
    EXPECT_EQ(tensor, std::vector<float>(tensor.size(), 7));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(MpiBackend, ReportsMpiErrorsWithTheirPlace) {
  try {
    check_mpi(MPI_ERR_COUNT, "MPI_Test");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::backend);
    const std::string expected = fmt::format("at mpi_backend_mpi_test.cc:{}", __LINE__ - 4);
    EXPECT_NE(std::string(error.what()).find("MPI_Test failed (MPI_ERR_COUNT"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kolo

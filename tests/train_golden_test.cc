// kolo-train's command line against the numbers of another implementation, on 1, 2 and 4 ranks.

#include "tests/train_testing.h"

namespace kolo::testing {
namespace {

class TrainGolden : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainGolden, ::testing::Values(1, 2, 4));

TEST_P(TrainGolden, TenStepsGiveTheSameLossesAndWeights) {
  const auto shared = shared_dir();
  if (shared.empty()) GTEST_SKIP() << "the reference numbers are not here (KOLO_SHARED_DIR)";
  const auto golden = shared / "golden" / "mlp";
  const TempFolder folder;
  const auto log = folder / "log.jsonl", save = folder / "save.safetensors";
  const auto done = train(
      folder, GetParam(),
      fmt::format(
          "--model mlp --data '{}' --init '{}' --order sequential --batch {} --steps 10 --optimizer sgd --lr 0.05 "
          "--momentum 0.9 --save '{}' --log '{}'",
          (shared / "data").string(), (golden / "model.safetensors").string(), 32 / GetParam(), save.string(),
          log.string()));
  ASSERT_EQ(done.code, 0) << done.err;

  const auto want = nlohmann::json::parse(read_file(golden / "trace.json"))["sgd"].get<std::vector<double>>();
  const auto got = losses_in(log);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t step = 0; step < want.size(); ++step) EXPECT_NEAR(got[step], want[step], 2e-5 * want[step]) << step;
  EXPECT_LT(apart(save, golden / "after_10_sgd.safetensors", golden / "model.safetensors"), 1e-4);
}

}  // namespace
}  // namespace kolo::testing

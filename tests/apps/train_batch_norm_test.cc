// --sync-batch-norm through the command line: statistics are those of all ranks, and part of what is saved.

#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainBatchNorm : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  void run(int ranks, const std::string& flags) {
    const auto done = train(folder_, ranks,
                            "--model cnn --filters 4 --dense 8 --sync-batch-norm --lr 0.05 --eval-every 100 " + flags);
    ASSERT_EQ(done.code, 0) << done.err;
  }

  std::vector<float> saved(std::string_view file, std::string_view tensor) const {
    const models::SafetensorsFile opened(folder_ / file);
    const models::StoredTensor& stored = *opened.find(tensor);
    std::vector<float> values((stored.end - stored.begin) / sizeof(float));
    opened.read(stored, values);
    return values;
  }

  void leave_out(std::string_view file, std::string_view tensor) {
    const models::SafetensorsFile opened(folder_ / file);
    std::vector<std::vector<float>> values;
    std::vector<models::NamedValues> others;
    for (const models::StoredTensor& stored : opened.tensors()) {
      if (stored.name == tensor) continue;
      values.push_back(saved(file, stored.name));
      others.push_back(
          {stored.name, Shape(std::vector<std::int64_t>(stored.shape.begin(), stored.shape.end())), values.back()});
    }
    models::write_safetensors(folder_ / file, others);
  }

  TempFolder folder_;
};

/// Statistics of each rank's own 60 examples would be off by a tenth of a deviation.
TEST_F(TrainBatchNorm, TwoRanksAreOneWithADoubleBatch) {
  run(0, "--steps 0 --save " + path("start.safetensors"));
  leave_out("start.safetensors", "conv1.bias");  // which a norm takes away again: its gradient is nothing but rounding
  run(0, "--steps 8 --batch 120 --save " + path("one.safetensors") + " --log " + path("one.jsonl"));
  run(2, "--steps 8 --batch 60 --save " + path("two.safetensors") + " --log " + path("two.jsonl"));
  EXPECT_LT(apart(folder_ / "two.safetensors", folder_ / "one.safetensors", folder_ / "start.safetensors"),
            1e-4);  // with the running statistics
  const auto one = losses_in(folder_ / "one.jsonl"), two = losses_in(folder_ / "two.jsonl");
  ASSERT_EQ(two.size(), 8u);
  for (std::size_t step = 0; step < one.size(); ++step) EXPECT_NEAR(two[step], one[step], 2e-5 * one[step]) << step;
  const auto one_eval = events_in(folder_ / "one.jsonl", "eval"), two_eval = events_in(folder_ / "two.jsonl", "eval");
  ASSERT_EQ(two_eval.size(), 1u);
  EXPECT_NEAR(two_eval[0]["loss"].get<double>(), one_eval[0]["loss"].get<double>(), 1e-4);
}

TEST_F(TrainBatchNorm, RunningStatisticsAreResumedToTheBit) {
  run(2, "--steps 8 --batch 60 --save " + path("straight.safetensors"));
  run(2, "--steps 5 --batch 60 --checkpoint " + path("c") + " --save " + path("half.safetensors"));
  run(2, "--steps 8 --batch 60 --checkpoint " + path("c") + " --resume --save " + path("resumed.safetensors"));
  EXPECT_NE(saved("half.safetensors", "bn1.running_mean"), saved("straight.safetensors", "bn1.running_mean"))
      << "they move in every step";
  EXPECT_EQ(read_file(folder_ / "resumed.safetensors"), read_file(folder_ / "straight.safetensors"));
}

}  // namespace
}  // namespace kolo::testing

// --sync-batch-norm through the command line: statistics are those of all ranks, and part of what is saved.

#include <array>

#include "apps/train/job.h"
#include "tests/apps/train_testing.h"
#include "tests/support/thread_ranks.h"

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

  TempFolder folder_;
};

/// Statistics of each rank's own 60 examples would be off by a tenth of a deviation.
TEST_F(TrainBatchNorm, TwoRanksAreOneWithADoubleBatch) {
  run(0, "--steps 0 --save " + path("start.safetensors"));
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

/// As files were before the bias in front of the norm was gone.
TEST_F(TrainBatchNorm, AnOldBiasIsLeftOutAndSaid) {
  run(0, "--steps 0 --save " + path("new.safetensors"));
  const models::SafetensorsFile opened(folder_ / "new.safetensors");
  const std::vector<float> bias{1, 2, 3, 4};
  std::vector<models::NamedValues> tensors{{"conv1.bias", {4}, bias}};
  std::vector<std::vector<float>> values;
  for (const models::StoredTensor& stored : opened.tensors()) {
    values.push_back(saved("new.safetensors", stored.name));
    tensors.push_back(
        {stored.name, Shape(std::vector<std::int64_t>(stored.shape.begin(), stored.shape.end())), values.back()});
  }
  models::write_safetensors(folder_ / "old.safetensors", tensors);
  const auto done = train(folder_, 2, "--model cnn --steps 1 --init " + path("old.safetensors"));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("(its conv1.bias is left out, and taken from bn1.running_mean: the norm takes it away)"),
            std::string::npos)
      << done.out;
}

TEST_F(TrainBatchNorm, RunningStatisticsAreResumedToTheBit) {
  run(2, "--steps 8 --batch 60 --save " + path("straight.safetensors"));
  run(2, "--steps 5 --batch 60 --checkpoint " + path("c") + " --save " + path("half.safetensors"));
  run(2, "--steps 8 --batch 60 --checkpoint " + path("c") + " --resume --save " + path("resumed.safetensors"));
  EXPECT_NE(saved("half.safetensors", "bn1.running_mean"), saved("straight.safetensors", "bn1.running_mean"))
      << "they move in every step";
  EXPECT_EQ(read_file(folder_ / "resumed.safetensors"), read_file(folder_ / "straight.safetensors"));
}

/// The sums of a norm have three shapes, and those of a model with eight norms of different widths up to 24. Ranks
/// remember 16 shapes of a name: under one name for all, sums would be announced in full in every pass.
TEST(SyncBatchNorm, EachShapeOfItsSumsHasAName) {
  run_ranks(2, [](Session& session) {
    constexpr std::array words{"kolo-train", "--model", "cnn", "--sync-batch-norm", "--filters", "4", "--dense", "8"};
    const train::Job job(train::parse_options(static_cast<int>(words.size()), words.data()), session);
    ASSERT_TRUE(job.settings().reduce);
    const auto pass = [&] {
      for (std::size_t elements = 1; elements <= 24; ++elements) {
        std::vector<double> sums(elements, session.rank() + 1);
        job.settings().reduce(view(sums));
        EXPECT_EQ(sums, std::vector<double>(elements, 3)) << "1 + 2";
      }
    };
    pass();
    const auto announced = session.stats().full_announcements;
    for (int times = 0; times < 5; ++times) pass();
    EXPECT_EQ(session.stats().full_announcements, announced);
  });
}

}  // namespace
}  // namespace kolo::testing

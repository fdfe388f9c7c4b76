// kolo-train in f16: steps whose gradients overflow.

#include <algorithm>
#include <vector>

#include "tests/apps/train_testing.h"
#include "tests/apps/wide_mlp.h"

namespace kolo::testing {
namespace {

class TrainF16 : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  Finished run(int ranks, const std::string& flags) {
    return train(folder_, ranks,
                 "--batch 32 --lr 1e-6 --init " + path("wide.safetensors") + " --log " + path("log") + " " + flags);
  }
  std::vector<nlohmann::json> steps() const { return events_in(folder_ / "log", "step"); }
  /// The numbers of all tensors of a file.
  std::vector<float> values(std::string_view name) const {
    const models::SafetensorsFile file(folder_ / name);
    std::vector<float> all;
    for (const models::StoredTensor& tensor : file.tensors()) {
      std::vector<float> some((tensor.end - tensor.begin) / sizeof(float));
      file.read(tensor, some);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  TempFolder folder_;
};

TEST_F(TrainF16, StepsThatOverflowAreSkipped) {
  write_wide_mlp(folder_ / "wide.safetensors", 100);
  for (const auto& [ranks, flags] : {std::pair{0, "--precision f16 "},
                                     {2, "--precision f16 --zero 1 "},
                                     {2, "--precision f16 --zero 0 --optimizer adamw "},
                                     {2, "--wire f16 --accumulate 2 "}}) {
    SCOPED_TRACE(flags);
    const auto done = run(ranks, flags + std::string("--steps 20"));
    ASSERT_EQ(done.code, 0) << done.err;
    double scale = 8192;
    std::int64_t skipped = 0;
    for (const auto& step : steps()) {
      EXPECT_EQ(step["loss_scale"], scale);
      EXPECT_TRUE(step["loss"].is_number());
      EXPECT_EQ(step["grad_norm"].is_null(), step["skipped"].get<bool>());
      if (!step["skipped"]) continue;
      scale /= 2;
      ++skipped;
    }
    EXPECT_EQ(steps().size(), 20u);
    EXPECT_GT(skipped, 1) << "the first scale is too large by far";
    EXPECT_LT(skipped, 14);
    EXPECT_EQ(steps().back()["skipped"], false) << "and a smaller one is not";
    EXPECT_NE(done.out.find(fmt::format(
                  "f16       {} steps skipped since gradients overflowed; the loss scale is {:g}\n", skipped, scale)),
              std::string::npos)
        << done.out;
    const std::string save = fmt::format(" --save {} --steps ", path("after.safetensors"));
    ASSERT_EQ(run(ranks, flags + save + std::to_string(skipped)).code, 0);
    EXPECT_TRUE(std::ranges::all_of(steps(), [](const auto& step) { return step["skipped"].template get<bool>(); }));
    EXPECT_EQ(values("after.safetensors"), values("wide.safetensors"));
    ASSERT_EQ(run(ranks, flags + save + "20").code, 0);
    EXPECT_NE(values("after.safetensors"), values("wide.safetensors"));
  }
}

TEST_F(TrainF16, ARunThatIsResumedKeepsItsScale) {
  write_wide_mlp(folder_ / "wide.safetensors", 100);
  const std::string flags = "--precision f16 --checkpoint " + path("run");
  ASSERT_EQ(run(2, flags + " --steps 3").code, 0);
  EXPECT_EQ(steps().back()["skipped"], true);
  ASSERT_EQ(run(2, flags + " --steps 20 --resume").code, 0);
  const auto resumed = steps();
  ASSERT_EQ(run(2, "--precision f16 --steps 20").code, 0);
  const auto whole = steps();
  ASSERT_EQ(resumed.size(), whole.size());
  EXPECT_EQ(resumed[3]["loss_scale"], 1024);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char* name : {"loss", "grad_norm", "loss_scale", "skipped"}) EXPECT_EQ(resumed[i][name], whole[i][name]);
  }
}

/// Where even the least scale overflows no step will ever do: the run says so and ends, and saves nothing.
TEST_F(TrainF16, NoStepsAreSkippedForEver) {
  write_wide_mlp(folder_ / "wide.safetensors", 60000);
  for (const int ranks : {0, 2}) {
    const auto done = run(ranks, "--precision f16 --steps 1000000 --save " + path("after.safetensors"));
    EXPECT_EQ(done.code, 1);
    EXPECT_EQ(done.problems(),
              std::vector<std::string>{"the gradients overflow f16 at step 13 with the least loss scale (the training "
                                       "diverged, or f16 is too narrow for this model); try --precision bf16, or an "
                                       "--lr below 1e-06"});
    EXPECT_EQ(steps().size(), 14u);
    EXPECT_EQ(steps().back()["loss_scale"], 1);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "after.safetensors"));
  }
}

}  // namespace
}  // namespace kolo::testing

// What kolo-train writes at the end: which tokens are drawn, and how many texts.

#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainSample : public ::testing::Test {
 protected:
  /// A model that has learned a little: some tokens are likelier than others, and none is certain.
  void SetUp() override {
    std::string text;
    for (int i = 0; text.size() < 6000; ++i) text += i % 7 == 3 ? "rustle " : i % 3 == 0 ? "the wind " : "and leaves ";
    write_file(folder_ / "text", text);
    const auto done = train(folder_, 0,
                            "--model llama --preset tiny --seq 32 --batch 4 --steps 8 --warmup 2 --data " +
                                path("text") + " --save " + path("m.safetensors"));
    ASSERT_EQ(done.code, 0) << done.err;
  }

  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }
  Finished run(const std::string& flags, int ranks) {
    return train(
        folder_, ranks,
        "--model llama --seq 32 --steps 0 --data " + path("text") + " --init " + path("m.safetensors") + " " + flags);
  }
  /// The texts behind the prompt.
  std::vector<std::string> texts(const std::string& flags, int ranks = 0) {
    const std::string prompt = "<prompt>";
    const auto done = run("--sample 30 --prompt '" + prompt + "' " + flags, ranks);
    EXPECT_EQ(done.code, 0) << done.err;
    std::vector<std::string> all;
    for (auto at = done.out.find(prompt); at != done.out.npos;) {
      const auto next = done.out.find(prompt, at + 1);
      all.push_back(done.out.substr(at + prompt.size(), next - at - prompt.size()));
      at = next;
    }
    return all;
  }
  std::string text(const std::string& flags, int ranks = 0) {
    const auto all = texts(flags, ranks);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? "" : all[0];
  }
  std::string problem(const std::string& flags) {
    const auto done = run(flags, 0);
    EXPECT_EQ(done.code, 1) << flags;
    return done.problems().size() == 1 ? done.problems()[0] : done.err;
  }

  TempFolder folder_;
};

TEST_F(TrainSample, ASeedIsAText) {
  const std::string seven = text("--sample-seed 7");
  EXPECT_EQ(seven.size(), 30u + 1);
  EXPECT_EQ(text("--sample-seed 7"), seven);
  EXPECT_EQ(text("--sample-seed 7", 2), seven) << "on any number of ranks";
  EXPECT_NE(text("--sample-seed 8"), seven);
  EXPECT_EQ(text("--seed 7"), seven) << "which it is by default";
  EXPECT_EQ(text("--seed 3 --sample-seed 7"), seven);
}

TEST_F(TrainSample, TheLikeliestTokens) {
  const std::string likeliest = text("--temperature 0");
  EXPECT_NE(text("--temperature 2"), likeliest);
  for (const char* flags : {"--temperature 5 --top-k 1", "--temperature 5 --top-p 1e-9", "--top-k 1 --top-p 0.5",
                            "--temperature 0 --top-k 7", "--temperature 0 --top-p 0.5 --sample-seed 9"})
    EXPECT_EQ(text(flags), likeliest) << flags;
  const std::string any = text("--temperature 2 --sample-seed 4");
  EXPECT_EQ(text("--temperature 2 --sample-seed 4 --top-k 0 --top-p 1"), any) << "these leave none out";
  EXPECT_NE(text("--temperature 2 --sample-seed 4 --top-k 2"), any);
  EXPECT_NE(text("--temperature 2 --sample-seed 4 --top-p 0.3"), any);
}

TEST_F(TrainSample, SeveralTexts) {
  const auto three = texts("--samples 3 --sample-seed 20", 2);
  ASSERT_EQ(three.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(text(fmt::format("--sample-seed {}", 20 + i)), three[i]);
  EXPECT_NE(three[0], three[1]);
  const auto same = texts("--samples 2 --temperature 0");
  ASSERT_EQ(same.size(), 2u);
  EXPECT_EQ(same[0], same[1]) << "nothing is drawn";
}

TEST_F(TrainSample, ValuesThatMeanNothing) {
  for (const char* value : {"-1", "1.5", "many", "''"}) {
    const std::string bare = std::string(value) == "''" ? "" : value;
    EXPECT_EQ(problem(fmt::format("--sample 5 --top-k {}", value)),
              fmt::format("--top-k is '{}'; it takes a whole number from 0 to 1000000000000", bare));
    EXPECT_EQ(problem(fmt::format("--sample 5 --samples {}", value)),
              fmt::format("--samples is '{}'; it takes a whole number from 1 to 1000000", bare));
    EXPECT_EQ(problem(fmt::format("--sample 5 --sample-seed {}", value)),
              fmt::format("--sample-seed is '{}'; it takes a whole number from 0 to 18446744073709551615", bare));
  }
  EXPECT_EQ(problem("--sample 5 --samples 0"), "--samples is '0'; it takes a whole number from 1 to 1000000");
  for (const std::string value : {"0", "-0.5", "1.5", "nan", "inf", "most"})
    EXPECT_EQ(problem("--sample 5 --top-p " + value),
              "--top-p is '" + value + "'; it takes a number above 0, at most 1");
  for (const std::string value : {"-1", "nan", "inf", "hot"})
    EXPECT_EQ(problem("--sample 5 --temperature " + value),
              "--temperature is '" + value + "'; it takes a number from 0 on, such as 0.1 or 1e-3");
  EXPECT_EQ(problem("--sample -1"), "--sample is '-1'; it takes a whole number from 0 to 1000000");
  for (const std::string flag : {"--top-k", "--top-p", "--samples", "--sample-seed", "--temperature"})
    EXPECT_EQ(problem(flag + " 1"), flag + " needs --sample N; add it");
}

}  // namespace
}  // namespace kolo::testing

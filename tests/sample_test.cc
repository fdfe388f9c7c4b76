#include "models/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/llama_testing.h"
#include "tests/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundLlama;
using testing::error_of;

LlamaSettings short_model() {
  LlamaSettings settings = llama_preset("tiny");
  settings.positions = 40;
  return settings;
}

/// The likeliest token behind `text`, of which the model sees no more than it has positions.
std::int32_t likeliest(Llama& model, const std::vector<std::int32_t>& text) {
  const auto seen = std::min<std::size_t>(text.size(), 40);
  const std::vector<std::int32_t> window(text.end() - static_cast<std::ptrdiff_t>(seen), text.end());
  const auto logits = model.logits({.examples = 1, .tokens = window}).last(256);
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

TEST(Sample, TheLikeliestTokensOneAfterTheOther) {
  BoundLlama llama(short_model());
  llama.spread();
  std::vector<std::int32_t> text{72, 101, 108, 108, 111};
  const std::vector<std::int32_t> written = generate(llama.model, text, {.count = 60, .temperature = 0});
  ASSERT_EQ(written.size(), 60u);
  for (const std::int32_t token : written) {
    ASSERT_EQ(token, likeliest(llama.model, text)) << text.size();
    text.push_back(token);
  }
}

TEST(Sample, TokensComeAsOftenAsTheyAreLikely) {
  BoundLlama llama(short_model());
  llama.spread();
  const std::vector<std::int32_t> prompt{1, 2, 3};
  const auto logits = llama.model.logits({.examples = 1, .tokens = prompt}).last(256);
  const float largest = *std::ranges::max_element(logits);
  double all = 0, top = 0;
  for (const float logit : logits) all += std::exp(logit - largest);
  top = 1 / all;
  const std::int32_t first = likeliest(llama.model, prompt);
  int hits = 0;
  constexpr int draws = 2000;
  for (int seed = 0; seed < draws; ++seed) {
    hits += generate(llama.model, prompt,
                     {.count = 1, .temperature = 1, .seed = static_cast<std::uint64_t>(seed)})[0] == first;
  }
  EXPECT_NEAR(hits, draws * top, 5 * std::sqrt(draws * top * (1 - top)) + 1);
}

TEST(Sample, TheSeedDecides) {
  BoundLlama llama(short_model());
  const std::vector<std::int32_t> prompt{1};
  const auto text = [&](std::uint64_t seed) { return generate(llama.model, prompt, {.count = 20, .seed = seed}); };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(Sample, BadPromptsAreErrors) {
  BoundLlama llama(short_model());
  const auto error = [&](std::vector<std::int32_t> prompt, Sampling sampling) {
    return error_of([&] { generate(llama.model, prompt, sampling); });
  };
  EXPECT_EQ(error({}, {.count = 1}), "there is no prompt to write on from; give at least one token");
  EXPECT_EQ(error({256}, {.count = 1}),
            "the prompt's token 256 is out of range (the model's vocabulary has 256); choose others");
  EXPECT_EQ(error({1}, {.count = -1}), "cannot write -1 tokens; give a count from 0");
  EXPECT_EQ(error({1}, {.count = 1, .temperature = -1}), "temperature is -1; give a number from 0");
}

}  // namespace
}  // namespace kolo::models

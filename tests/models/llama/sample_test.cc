
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "models/llama/decoder.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundLlama;
using testing::error_of;

LlamaSettings short_model() {
  LlamaSettings settings = llama_preset("tiny");
  settings.positions = 40;
  return settings;
}

/// The likeliest token behind `text`, of which the model sees the last 40; once it has seen all from the first on, the
/// last 20 and what comes behind them.
std::int32_t likeliest(Llama& model, const std::vector<std::int32_t>& text, std::size_t first = 0) {
  std::size_t seen = text.size() - first;
  while (seen > 40) seen -= 21;
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

TEST(Sample, OfALongPromptTheEndCounts) {
  BoundLlama llama(short_model());
  llama.spread();
  std::vector<std::int32_t> text;
  for (std::int32_t i = 0; i < 90; ++i) text.push_back(i * 7 % 256);
  for (const std::int32_t token : generate(llama.model, text, {.count = 50, .temperature = 0})) {
    ASSERT_EQ(token, likeliest(llama.model, text, 50)) << text.size();
    text.push_back(token);
  }
}

/// Token by token or all at once: the same logits but for rounding, with heads of every kind.
TEST(Sample, ReadingOneByOneGivesTheLogitsOfAllAtOnce) {
  for (const bool tied : {false, true}) {
    for (const std::int64_t kv_heads : {1, 2, 4}) {
      LlamaSettings settings = short_model();
      settings.dim = 56;  // heads of 14, which vectors do not hold evenly
      settings.heads = 4;
      settings.kv_heads = kv_heads;
      settings.tied_head = tied;
      BoundLlama llama(settings);
      llama.spread();
      const testing::TokenBatch text(1, settings.positions, settings.vocabulary);
      const auto want = llama.model.logits(text.batch());
      LlamaDecoder decoder(llama.model);
      for (int repeat = 0; repeat < 2; ++repeat, decoder.begin_anew()) {
        std::vector<float> got;
        for (const std::int32_t token : text.tokens) {
          const auto logits = decoder.read(token);
          got.insert(got.end(), logits.begin(), logits.end());
        }
        EXPECT_LT(testing::relative_difference(got, want), 1e-5) << kv_heads << " kv heads";
      }
    }
  }
}

TEST(Sample, ATextLongerThanThePositionsIsAnError) {
  BoundLlama llama(short_model());
  LlamaDecoder decoder(llama.model);
  for (int i = 0; i < 40; ++i) decoder.read(1);
  EXPECT_EQ(error_of([&] { decoder.read(1); }),
            "the text is too long (the model has 40 positions); begin anew with a part of it");
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

/// Of 2000 draws of one token none is outside, and each that may be drawn is, as often as it is likely among them.
TEST(Sample, OnlyTheLikeliest) {
  BoundLlama llama(short_model());
  llama.spread();
  const std::vector<std::int32_t> prompt{1, 2, 3};
  const auto logits = llama.model.logits({.examples = 1, .tokens = prompt}).last(256);
  std::vector<std::pair<double, std::int32_t>> by_weight;
  for (const float logit : logits) by_weight.emplace_back(std::exp(logit), static_cast<std::int32_t>(by_weight.size()));
  std::ranges::sort(by_weight, std::greater<>());
  double all = 0;
  for (const auto& [weight, token] : by_weight) all += weight;
  const auto expect_drawn = [&](Sampling sampling, std::size_t allowed) {
    double sum = 0;
    for (std::size_t i = 0; i < allowed; ++i) sum += by_weight[i].first;
    std::map<std::int32_t, int> hits;
    constexpr int draws = 2000;
    for (int seed = 0; seed < draws; ++seed) {
      sampling.seed = static_cast<std::uint64_t>(seed);
      ++hits[generate(llama.model, prompt, sampling)[0]];
    }
    int inside = 0;
    for (std::size_t i = 0; i < allowed; ++i) {
      const double share = by_weight[i].first / sum;
      EXPECT_NEAR(hits[by_weight[i].second], draws * share, 5 * std::sqrt(draws * share * (1 - share)) + 1);
      inside += hits[by_weight[i].second];
    }
    EXPECT_EQ(inside, draws);
  };
  expect_drawn({.count = 1, .temperature = 1, .top_k = 3}, 3);
  const double two = (by_weight[0].first + by_weight[1].first) / all;
  expect_drawn({.count = 1, .temperature = 1, .top_p = two * 0.999}, 2);
  expect_drawn({.count = 1, .temperature = 1, .top_p = two * 1.001}, 3);
  expect_drawn({.count = 1, .temperature = 1, .top_p = 1e-9}, 1);
  expect_drawn({.count = 1, .temperature = 1, .top_k = 2, .top_p = 0.999999}, 2);
}

TEST(Sample, TheSeedDecides) {
  BoundLlama llama(short_model());
  const std::vector<std::int32_t> prompt{1};
  const auto text = [&](std::uint64_t seed) { return generate(llama.model, prompt, {.count = 20, .seed = seed}); };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(Sample, EndsWhenItIsToldTo) {
  BoundLlama llama(short_model());
  const std::vector<std::int32_t> prompt{1};
  const auto all = generate(llama.model, prompt, {.count = 20});
  const auto some =
      generate(llama.model, prompt, {.count = 20, .progress = [](std::int64_t written) { return written < 7; }});
  EXPECT_EQ(some, (std::vector<std::int32_t>{all.begin(), all.begin() + 7}));
}

TEST(Sample, BadPromptsAreErrors) {
  BoundLlama llama(short_model());
  const auto error = [&](std::vector<std::int32_t> prompt, Sampling sampling) {
    return error_of([&] { generate(llama.model, prompt, sampling); });
  };
  EXPECT_EQ(error({}, {.count = 1}), "the prompt is empty; give at least one token");
  EXPECT_EQ(error({256}, {.count = 1}),
            "the prompt's token 256 is out of range (the model's vocabulary has 256); choose others");
  EXPECT_EQ(error({1}, {.count = -1}), "cannot generate -1 tokens; give a count from 0");
  EXPECT_EQ(error({1}, {.count = 1, .temperature = -1}), "temperature is -1; give a number from 0");
}

}  // namespace
}  // namespace kolo::models

#include "models/llama/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/compute/random.h"
#include "models/llama/decoder.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

void check(const Sampling& sampling) {
  if (sampling.count < 0)
    throw ModelError(fmt::format("cannot generate {} tokens; give a count from 0", sampling.count));
  if (!(sampling.temperature >= 0)) {
    throw ModelError(fmt::format("temperature is {}; give a number from 0", sampling.temperature));
  }
}

/// The token at which the sum of probabilities passes a random share of all.
std::int32_t draw(std::span<const float> logits, double temperature, Random& random) {
  const auto likeliest = std::ranges::max_element(logits);
  if (temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - *likeliest) / temperature); };
  double all = 0;
  for (const float logit : logits) all += weight(logit);
  double left = random.uniform() * all;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    left -= weight(logits[token]);
    if (left < 0) return static_cast<std::int32_t>(token);
  }
  return static_cast<std::int32_t>(likeliest - logits.begin());
}

}  // namespace

void check_prompt(const Llama& model, std::span<const std::int32_t> prompt) {
  if (prompt.empty()) throw ModelError("the prompt is empty; give at least one token");
  const std::int64_t vocabulary = model.settings().vocabulary;
  for (const std::int32_t token : prompt) {
    if (token >= 0 && token < vocabulary) continue;
    throw ModelError(fmt::format("the prompt's token {} is out of range (the model's vocabulary has {}); choose others",
                                 token, vocabulary));
  }
}

std::vector<std::int32_t> generate(const Llama& model, std::span<const std::int32_t> prompt, const Sampling& sampling) {
  check_prompt(model, prompt);
  check(sampling);
  const std::int64_t positions = model.settings().positions;
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  LlamaDecoder decoder(model);
  Random random(sampling.seed);
  std::int64_t next = std::max<std::int64_t>(0, std::ssize(text) - positions);  // to be read
  for (std::int64_t written = 0; written < sampling.count; ++written) {
    if (sampling.progress) sampling.progress(written);
    if (decoder.seen() == positions) {
      decoder.begin_anew();
      next = std::ssize(text) - (positions + 1) / 2;
    }
    std::span<const float> logits;
    for (; next < std::ssize(text); ++next) logits = decoder.read(text[static_cast<std::size_t>(next)]);
    text.push_back(draw(logits, sampling.temperature, random));
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

}  // namespace kolo::models

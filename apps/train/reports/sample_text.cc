#include "apps/train/reports/sample_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <vector>

#include "models/llama/llama.h"
#include "models/llama/sample.h"

namespace kolo::train {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens numbers_in(const std::string& text) {
  Tokens tokens;
  std::istringstream stream(text);
  std::int32_t token = 0;
  while (stream >> token) tokens.push_back(token);
  if (!stream.eof()) {
    throw UsageError(
        fmt::format("--prompt is '{}', and the tokens are not bytes; give their numbers, such as '17 4'", text));
  }
  return tokens;
}

Tokens prompt_of(const Options& options) {
  const bool text = options.tokens == models::TokenType::bytes;
  if (options.prompt.empty()) return {text ? std::int32_t{'\n'} : 0};
  if (!text) return numbers_in(options.prompt);
  Tokens tokens;
  for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

const models::Llama& llama_of(Job& job) {
  return dynamic_cast<const models::Llama&>(job.model());
}

/// Replaces control characters, which a terminal would interpret.
std::string text_from(const Tokens& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) {
    const bool plain = (token >= 0x20 && token < 0x100 && token != 0x7f) || token == '\n' || token == '\t';
    text += plain ? static_cast<char>(token) : '?';
  }
  return text;
}

}  // namespace

void check_sample(Job& job) {
  models::check_prompt(llama_of(job), prompt_of(job.options()));
}

std::string sample_text(Job& job, const std::function<void(std::int64_t)>& progress) {
  const Options& options = job.options();
  const Tokens prompt = prompt_of(options);
  const Tokens written = models::generate(
      llama_of(job), prompt,
      {.count = options.sample, .temperature = options.temperature, .seed = options.seed, .progress = progress});
  if (options.tokens != models::TokenType::bytes)
    return fmt::format("{} | {}\n", fmt::join(prompt, " "), fmt::join(written, " "));
  return options.prompt + text_from(written) + "\n";
}

}  // namespace kolo::train

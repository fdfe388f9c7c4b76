#include "apps/train/reports/outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>

#include "models/checkpoint/safetensors.h"
#include "models/llama/decoder.h"
#include "models/registry.h"

namespace kolo::train {

namespace {

models::Llama& llama_of(Job& job) {
  return dynamic_cast<models::Llama&>(job.model());
}

/// "logits" [sequences, positions, vocabulary] of the first held-out sequences, one batch of them.
void write_logits(Job& job) {
  const models::Examples& held_out = *job.corpus().held_out;
  std::vector<std::int64_t> first(static_cast<std::size_t>(std::min(job.options().batch, held_out.count())));
  std::iota(first.begin(), first.end(), 0);
  models::BatchStorage batch;
  held_out.gather(first, 0, batch);
  const auto logits = llama_of(job).logits(batch.view());
  const models::NamedValues named{
      "logits", {batch.examples, held_out.targets_each(), job.settings().llama.vocabulary}, logits};
  models::write_safetensors(job.options().logits, {&named, 1});
}

}  // namespace

Outputs::Outputs(const Options& options) : options_(options) {
  if (!options.save.empty()) models::check_savable(options.save);
  if (!options.save.empty() && options.takes_tokens()) companions_ = models::companions_of(options.init);
  if (!options.save.empty() && options.tokenizer_given) models::replace_tokenizer(companions_, options.tokenizer);
  if (!options.logits.empty()) models::check_writable(options.logits);
  if (!options.plot.empty()) {
    models::check_writable(options.plot);
    plot_.emplace(options.plot, fmt::format("kolo-train --model {}", options.model));
  }
  if (!options.log.empty()) log_.emplace(options.log, options.log_every);
}

void Outputs::begin(const Job& job, const Resumed& from) {
  const std::int64_t first = from.steps_done;
  if (!options_.logits.empty() && job.corpus().held_out->count() == 0) {
    throw UsageError("--logits is of held-out sequences, and there are none; give --val a file");
  }
  std::vector<Listener*> of_earlier_steps;
  if (plot_) of_earlier_steps.push_back(&*plot_);
  if (log_ && options_.eval_only) {
    log_->begin_behind(of_earlier_steps);
  } else if (log_) {
    log_->begin(first, from.lacks_evaluation || first >= job.last_step(), of_earlier_steps);
  }
  if (!options_.tensorboard.empty()) {
    const auto replaces = options_.eval_only ? std::nullopt : std::optional(first);
    tensorboard_.emplace(options_.tensorboard, replaces, options_.log_every);
  }
  const std::int64_t epoch = job.sampler().steps_per_epoch();
  progress_.emplace(first, std::max(first, job.last_step()), epoch, options_.eval_every.value_or(epoch));
}

std::vector<Listener*> Outputs::listeners() {
  std::vector<Listener*> all;
  if (log_) all.push_back(&*log_);
  if (tensorboard_) all.push_back(&*tensorboard_);
  if (plot_) all.push_back(&*plot_);
  all.push_back(&*progress_);
  return all;
}

void Outputs::finish(Job& job, bool finished) {
  if (finished && !options_.save.empty()) saved_model(job).write(options_.save, job.model());
  if (finished && !options_.logits.empty()) write_logits(job);
  if (plot_) plot_->write();
  if (log_) log_->close();
  if (tensorboard_) tensorboard_->close();
}

models::SavedModel Outputs::saved_model(const Job& job) const {
  return {.model = std::string(models::name_in_files(models::kind_of(options_.model))),
          .settings = job.settings(),
          .stored = options_.save_dtype == models::Precision::bf16 ? DType::bf16 : DType::f32,
          .companions = companions_};
}

std::string to_string(const Peaks& peaks) {
  const auto range = [](const std::vector<std::uint64_t>& of_ranks) {
    const auto [least, most] = std::ranges::minmax(of_ranks);
    return (format_bytes(least) == format_bytes(most) ? "" : format_bytes(least) + " to ") + format_bytes(most);
  };
  std::string text = fmt::format("memory    {} per rank at the peak", range(peaks.host));
  if (std::ranges::max(peaks.gpu) > 0) text += fmt::format("; {} in use on each rank's GPU", range(peaks.gpu));
  return text + "\n";
}

std::string Outputs::summary(const Peaks& peaks) {
  progress_->end_line();
  return progress_->summary(static_cast<int>(peaks.host.size())) + to_string(peaks);
}

namespace {

using Tokens = std::vector<std::int32_t>;

Tokens numbers_in(const std::string& text) {
  Tokens tokens;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, tokens.emplace_back());
    if (error == std::errc() && at == end) continue;
    throw UsageError(
        fmt::format("--prompt is '{}', and the tokens are not bytes, but '{}' is no number of one; give their numbers, "
                    "such as '17 4', or --tokenizer",
                    text, word));
  }
  return tokens;
}

/// The prompt without what follows a whole text.
Tokens encoded(const models::Tokenizer& tokenizer, const std::string& text) {
  Tokens tokens = tokenizer.encode(text);
  tokens.resize(tokens.size() - tokenizer.definition().behind.size());
  return tokens.empty() ? tokenizer.encode("\n") : tokens;
}

Tokens prompt_of(const Job& job) {
  const std::string& text = job.options().prompt;
  if (job.tokenizer() != nullptr) return encoded(*job.tokenizer(), text);
  if (text.empty()) return {job.corpus().bytes ? std::int32_t{'\n'} : 0};
  if (!job.corpus().bytes) return numbers_in(text);
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string text_of(const Job& job, Tokens tokens) {
  std::string text;
  if (job.tokenizer() != nullptr) {
    const std::int64_t known = job.tokenizer()->size();
    std::erase_if(tokens, [&](std::int32_t token) { return token >= known; });  // the model may have room for more
    text = job.tokenizer()->decode(tokens);
  } else {
    for (const std::int32_t token : tokens) text += token < 0x100 ? static_cast<char>(token) : '?';
  }
  for (char& c : text) {  // a terminal would interpret control characters
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

void check_sample(Job& job) {
  models::check_prompt(llama_of(job), prompt_of(job));
}

std::string sample_text(Job& job, const std::function<bool(std::int64_t)>& progress) {
  const Options& options = job.options();
  const Tokens prompt = prompt_of(job);
  std::string text;
  for (std::int64_t number = 0; number < options.samples; ++number) {
    const Tokens written =
        models::generate(llama_of(job), prompt,
                         {.count = options.sample,
                          .temperature = options.temperature,
                          .top_k = options.top_k,
                          .top_p = options.top_p,
                          .seed = options.sample_seed.value_or(options.seed) + static_cast<std::uint64_t>(number),
                          .progress = progress});
    text += job.tokenizer() == nullptr && !job.corpus().bytes
                ? fmt::format("{} | {}\n", fmt::join(prompt, " "), fmt::join(written, " "))
                : options.prompt + text_of(job, written) + "\n";
  }
  return text;
}

}  // namespace kolo::train

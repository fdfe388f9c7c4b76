#include "apps/train/options/model_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace kolo::train {
namespace {

/// A size that may come from a flag.
template <class Value>
struct Choice {
  std::string_view flag;
  const std::optional<Value>* given;
  Value* size;
};

std::vector<Choice<std::int64_t>> counts(const Options& options, models::ModelSettings& settings) {
  models::LlamaSettings& llama = settings.llama;
  return {{"filters", &options.filters, &settings.cnn.filters},
          {"dense", &options.dense, &settings.cnn.dense},
          {"channels", &options.channels, &settings.cnn.channels},
          {"dim", &options.dim, &llama.dim},
          {"layers", &options.layers, &llama.layers},
          {"heads", &options.heads, &llama.heads},
          {"kv-heads", &options.kv_heads, &llama.kv_heads},
          {"ffn", &options.ffn, &llama.ffn},
          {"vocab", &options.vocab, &llama.vocabulary},
          {"positions", &options.positions, &llama.positions}};
}

std::vector<Choice<double>> numbers(const Options& options, models::ModelSettings& settings) {
  return {{"rope-theta", &options.rope_theta, &settings.llama.rope_theta},
          {"norm-eps", &options.norm_eps, &settings.llama.norm_eps}};
}

template <class Value>
void put(const std::vector<Choice<Value>>& choices) {
  for (const auto& choice : choices) {
    if (*choice.given) *choice.size = **choice.given;
  }
}

[[noreturn]] void contradicts(const Options& options, const std::string& said, const std::string& held,
                              std::string_view flag) {
  throw UsageError(
      fmt::format("{} contradicts --init {} (which holds {}); leave --{} out", said, options.init, held, flag));
}

template <class Value>
void check(const Options& options, const std::vector<Choice<Value>>& choices) {
  for (const auto& choice : choices) {
    if (!*choice.given || **choice.given == *choice.size) continue;
    contradicts(options, fmt::format("--{} {}", choice.flag, **choice.given), fmt::format("{}", *choice.size),
                choice.flag);
  }
}

template <class Value>
void check_preset(const Options& options, const std::vector<Choice<Value>>& said,
                  const std::vector<Choice<Value>>& held) {
  for (std::size_t i = 0; i < said.size(); ++i) {
    if (*said[i].given || *said[i].size == *held[i].size) continue;
    contradicts(options, fmt::format("--preset {} (--{} {})", options.preset, said[i].flag, *said[i].size),
                fmt::format("{}", *held[i].size), "preset");
  }
}

/// A preset also gives sizes.
void check_preset(const Options& options, models::ModelSettings& preset, models::ModelSettings& held) {
  if (options.preset.empty()) return;
  check_preset(options, counts(options, preset), counts(options, held));
  check_preset(options, numbers(options, preset), numbers(options, held));
}

void take_over(const Options& options, const models::Pretrained& pretrained, models::ModelSettings& settings) {
  models::ModelSettings before = settings;
  pretrained.settings(settings);
  check_preset(options, before, settings);
  check(options, counts(options, settings));
  check(options, numbers(options, settings));
  if (!options.sizes.empty() && options.sizes != settings.sizes) {
    contradicts(options, fmt::format("--sizes {}", fmt::join(options.sizes, ",")),
                fmt::format("{}", fmt::join(settings.sizes, ",")), "sizes");
  }
  if (options.tied_head && !settings.llama.tied_head)
    contradicts(options, "--tied-head", "a head of its own", "tied-head");
  if (options.sync_batch_norm && !settings.cnn.batch_norm) {
    contradicts(options, "--sync-batch-norm", "no normalisation", "sync-batch-norm");
  }
}

}  // namespace

std::optional<models::Pretrained> open_pretrained(const Options& options) {
  if (options.init.empty()) return std::nullopt;
  models::Pretrained pretrained(options.init);
  if (const std::string model = pretrained.model(); model != options.model) {
    throw UsageError(fmt::format("{} holds a model of the kind {}; say --model {}, or give another --init",
                                 options.init, model, model));
  }
  return pretrained;
}

models::ModelSettings model_settings(const Options& options, const std::optional<models::Pretrained>& pretrained) {
  models::ModelSettings settings;
  settings.sizes = options.sizes;
  if (options.is_llama()) settings.llama = models::llama_preset(options.preset.empty() ? "small" : options.preset);
  settings.llama.tied_head = options.tied_head;
  settings.cnn.batch_norm = options.sync_batch_norm;
  settings.precision = options.precision;
  settings.recompute = options.recompute;
  put(counts(options, settings));
  put(numbers(options, settings));
  if (pretrained) take_over(options, *pretrained, settings);
  if (options.seq.value_or(0) > settings.llama.positions) {
    throw UsageError(fmt::format("--seq {} is longer than the {} positions of the model; give a smaller one{}",
                                 *options.seq, settings.llama.positions, pretrained ? "" : ", or more --positions"));
  }
  return settings;
}

void fit_to_tokenizer(models::ModelSettings& settings, const Options& options, const models::Tokenizer& tokenizer) {
  std::int64_t& vocabulary = settings.llama.vocabulary;
  if (!options.vocab && options.init.empty()) vocabulary = tokenizer.size();
  if (vocabulary >= tokenizer.size()) return;
  throw UsageError(fmt::format("a vocabulary of {} has no room for the {} tokens of --tokenizer {}; {}", vocabulary,
                               tokenizer.size(), options.tokenizer,
                               options.vocab ? "leave --vocab out" : "give the tokenizer of --init"));
}

std::int64_t positions_of(const Options& options, const models::ModelSettings& settings) {
  return options.seq.value_or(settings.llama.positions);
}

void fit_to_data(models::ModelSettings& settings, const Options& options, const Corpus& corpus, Session& session) {
  if (!corpus.images) return;
  const models::Dataset& images = corpus.images->train;
  if (options.channels && *options.channels != images.channels) {
    throw UsageError(
        fmt::format("--channels is {}, and the images have {}; leave it out", *options.channels, images.channels));
  }
  settings.inputs = images.input_size();
  settings.classes = images.classes;
  if (settings.sizes.empty()) settings.sizes = {images.input_size(), 1024, 1024, images.classes};
  settings.cnn.channels = images.channels;
  settings.cnn.height = images.rows;
  settings.cnn.width = images.columns;
  if (options.init.empty()) settings.cnn.classes = images.classes;
  if (settings.cnn.batch_norm && session.size() > 1) {
    settings.reduce = [&session](Tensor sums) { session.all_reduce("statistics of a batch", sums); };
  }
}

}  // namespace kolo::train

#include <memory>
#include <vector>

#include "models/llama/llama.h"
#include "models/registry.h"

namespace kolo::models {
namespace {

std::unique_ptr<Model> make_llama(const ModelSettings& settings) {
  return std::make_unique<Llama>(settings.llama, settings.precision, settings.recompute, settings.device);
}

/// Of a token 6 for each parameter that is multiplied, and 6·layers·positions·dim for causal attention, as Kaplan et
/// al. 2020 (arXiv:2001.08361) count, with half of the positions seen on average.
double flops_of_llama(const Model& model, const ModelSettings& settings, std::int64_t positions) {
  const LlamaSettings& sizes = settings.llama;
  const double looked_up = sizes.tied_head ? 0 : static_cast<double>(sizes.vocabulary * sizes.dim);
  const auto tokens = static_cast<double>(positions);
  return tokens * 6 * (matrix_elements(model) - looked_up + static_cast<double>(sizes.layers * sizes.dim) * tokens);
}

/// Sizes, and what trains a model of them: the larger the model, the smaller the rate. From 125 million parameters on
/// it is that of GPT-3 (Brown et al. 2020, arXiv:2005.14165, table 2.1: batches of half a million tokens, a warm-up
/// over 375 million); the rates of smaller ones were tried on bytes of text.
Preset llama_sizes(std::string_view name, const Recipe& recipe) {
  return {
      .name = name, .put = [name](ModelSettings& settings) { settings.llama = llama_preset(name); }, .recipe = recipe};
}

Recipe llama_recipe(double lr, std::int64_t warmup, std::int64_t batch) {
  return {.epochs = 1,
          .batch = batch,
          .optimizer = "adamw",
          .adam_lr = lr,
          .beta2 = 0.95,
          .weight_decay = 0.1,
          .schedule = Curve::cosine,
          .warmup = warmup,
          .clip = 1};
}

template <auto size>
auto& llama_field(ModelSettings& settings) {
  return settings.llama.*size;
}

}  // namespace

ModelKind llama_kind() {
  const Recipe small = llama_recipe(2e-3, 60, 8);
  return {.name = "llama",
          .data = DataKind::tokens,
          .make = make_llama,
          .recipe = small,
          .flags = {{.name = "dim", .doc = "hidden size", .field = &llama_field<&LlamaSettings::dim>},
                    {.name = "layers",
                     .doc = "transformer blocks",
                     .most = 10'000,
                     .field = &llama_field<&LlamaSettings::layers>},
                    {.name = "heads", .doc = "attention heads", .field = &llama_field<&LlamaSettings::heads>},
                    {.name = "kv-heads",
                     .doc = "key/value heads (grouped-query attention)",
                     .field = &llama_field<&LlamaSettings::kv_heads>},
                    {.name = "ffn",
                     .doc = "intermediate size of the feed-forward layer",
                     .field = &llama_field<&LlamaSettings::ffn>},
                    {.name = "vocab",
                     .doc = "vocabulary size (default: the preset's, 256 for bytes)",
                     .field = &llama_field<&LlamaSettings::vocabulary>},
                    {.name = "positions",
                     .doc = "longest sequence that the model takes",
                     .field = &llama_field<&LlamaSettings::positions>},
                    {.name = "rope-theta", .doc = "RoPE base", .field = &llama_field<&LlamaSettings::rope_theta>},
                    {.name = "norm-eps", .doc = "epsilon of RMSNorm", .field = &llama_field<&LlamaSettings::norm_eps>},
                    {.name = "tied-head",
                     .doc = "tie the output head to the embedding",
                     .field = &llama_field<&LlamaSettings::tied_head>,
                     .otherwise = "a head of its own"},
                    {.name = "recompute",
                     .doc = "activation checkpointing: less memory, the same bits",
                     .field = [](ModelSettings& of) -> bool& { return of.recompute; }}},
          .presets = {llama_sizes("tiny", llama_recipe(1e-2, 60, 8)), llama_sizes("small", small),
                      llama_sizes("base", llama_recipe(6e-4, 750, 4))},
          .flops = flops_of_llama,
          .writes_text = true};
}

}  // namespace kolo::models

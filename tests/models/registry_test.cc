// The table of models: what programs are told about each of them.

#include "models/registry.h"

#include <gtest/gtest.h>

namespace kolo::models {
namespace {

double flops(std::string_view name, const ModelSettings& settings, std::int64_t positions = 1) {
  return kind_of(name).flops(*make_model(name, settings), settings, positions);
}

/// Products of m·n·k multiplications: forward, the weight's gradient, and the input's, which the first layer has not.
TEST(Registry, FlopsOfAnMlp) {
  EXPECT_EQ(flops("mlp", {.sizes = {100, 20, 7}}), 2 * (2 * 100 * 20 + 3 * 20 * 7));
}

TEST(Registry, FlopsOfACnn) {
  const ModelSettings settings{
      .cnn = {.channels = 3, .height = 10, .width = 12, .filters = 5, .dense = 6, .classes = 4}};
  const double convolution = 8 * 10 * 5 * (3 * 3 * 3), pooled = 4 * 5 * 5;
  EXPECT_EQ(flops("cnn", settings), 2 * (2 * convolution + 3 * (pooled * 6 + 6 * 4)));
}

/// By hand: products of a layer, the head, and two products of positions with each other, half of which are masked.
TEST(Registry, FlopsOfALlama) {
  ModelSettings settings{.llama = llama_preset("tiny")};
  const double layer = 32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 88, head = 32 * 256, tokens = 48;
  const double attention = 2 * 32 * tokens / 2;
  const double expected = tokens * 2 * 3 * (2 * (layer + attention) + head);
  EXPECT_EQ(flops("llama", settings, 48), expected);
  settings.llama.tied_head = true;
  EXPECT_EQ(flops("llama", settings, 48), expected) << "the embedding is the head";
  settings.recompute = true;
  EXPECT_EQ(flops("llama", settings, 48), expected) << "what is computed again does not count";
}

TEST(Registry, PresetsGetSmallerRatesAsTheyGrow) {
  const ModelKind& llama = kind_of("llama");
  double rate = 1;
  std::int64_t elements = 0;
  for (const Preset& preset : llama.presets) {
    ModelSettings settings;
    preset.put(settings);
    const std::int64_t more = value_elements(*llama.make(settings));
    EXPECT_GT(more, elements) << preset.name;
    EXPECT_LT(preset.recipe.adam_lr, rate) << preset.name;
    elements = more;
    rate = preset.recipe.adam_lr;
  }
}

/// Files of a kind that kolo brings keep its first name, which another kind may have taken since.
TEST(Registry, NamesInFiles) {
  const auto name = [](std::string_view now, std::vector<std::string_view> formerly, bool says_sizes = false) {
    ModelKind kind{.name = now, .formerly = std::move(formerly)};
    if (says_sizes) kind.sizes = [](const StoredExtent&, ModelSettings&) {};
    return name_in_files(kind);
  };
  EXPECT_EQ(name("cnn", {}), "cnn");
  EXPECT_EQ(name("lenet", {"lecun"}), "lenet");
  EXPECT_EQ(name("lenet", {"cnn"}), "lenet") << "another kind is called so";
  EXPECT_EQ(name("lenet", {"lecun", "cnn"}, true), "lenet");
}

/// An optimizer asks no shape: each layer says it of its parameters.
TEST(Registry, WeightsDecayAndBiasesAndNormsDoNot) {
  for (const ModelKind& kind : model_kinds()) {
    const auto model = make_model(
        kind.name,
        {.sizes = {4, 3}, .cnn = {.height = 9, .width = 8, .batch_norm = true}, .llama = llama_preset("tiny")});
    for (const Parameter& parameter : model->parameters())
      EXPECT_EQ(parameter.decays, parameter.shape.dims() > 1) << kind.name << ": " << parameter.name;
  }
}

}  // namespace
}  // namespace kolo::models

#include "models/llama/pretrained.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/cnn.h"
#include "models/llama/config.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundLlama;
using testing::error_of;
using testing::TempFolder;
using testing::write_file;

/// A folder with a tiny Llama in two shards, whose config says `config`.
struct Sharded {
  explicit Sharded(const std::string& more_config = "") : llama(llama_preset("tiny")) {
    std::vector<NamedValues> first, second;
    std::string map;
    for (const Parameter& parameter : llama.model.parameters()) {
      const bool in_first = parameter.name.find("layers.1") == std::string::npos;
      (in_first ? first : second).push_back({parameter.name, parameter.shape, testing::floats_of(parameter.value)});
      map += fmt::format("{}\"{}\":\"part-{}.safetensors\"", map.empty() ? "" : ",", parameter.name, in_first ? 1 : 2);
    }
    write_safetensors(folder / "part-1.safetensors", first);
    write_safetensors(folder / "part-2.safetensors", second);
    write_index("{" + map + "}");
    write_file(folder / "config.json",
               R"({"vocab_size":256,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,)"
               R"("num_key_value_heads":2,"intermediate_size":88,"max_position_embeddings":64,"rms_norm_eps":1e-5)" +
                   more_config + "}");
  }
  void write_index(const std::string& map) const {
    write_file(folder / "model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  }
  std::string error() const {
    return error_of(
        [&] {
          const Pretrained pretrained(folder.path());
          ModelSettings settings;
          pretrained.settings(settings);
          BoundLlama loaded(settings.llama);
          pretrained.load(loaded.model);
        },
        folder.path());
  }

  TempFolder folder;
  BoundLlama llama;
};

TEST(Pretrained, ShardsAndConfig) {
  const Sharded sharded(R"(,"rope_theta":500000,"tie_word_embeddings":false,"head_dim":8)");
  const Pretrained pretrained(sharded.folder.path());
  EXPECT_EQ(pretrained.model(), "llama");
  ModelSettings settings;
  pretrained.settings(settings);
  EXPECT_EQ(settings.llama.dim, 32);
  EXPECT_EQ(settings.llama.kv_heads, 2);
  EXPECT_EQ(settings.llama.positions, 64);
  EXPECT_EQ(settings.llama.rope_theta, 500000);
  BoundLlama loaded(settings.llama);
  std::ranges::fill(loaded.values, 0.0f);
  pretrained.load(loaded.model);
  EXPECT_EQ(loaded.values, sharded.llama.values);
}

TEST(Pretrained, AWholeFileIsReadBeforeShards) {
  const Sharded sharded;
  BoundLlama whole(llama_preset("tiny"));
  whole.values.back() += 1;
  save_parameters(sharded.folder / "model.safetensors", whole.model);
  BoundLlama loaded(llama_preset("tiny"));
  Pretrained(sharded.folder.path()).load(loaded.model);
  EXPECT_EQ(loaded.values, whole.values);
}

TEST(Pretrained, RotationsOfNewerConfigs) {
  const auto settings_of = [](const Sharded& sharded) {
    ModelSettings settings;
    Pretrained(sharded.folder.path()).settings(settings);
    return settings.llama;
  };
  EXPECT_EQ(settings_of(Sharded(R"(,"rope_parameters":{"rope_theta":20000.0,"rope_type":"default"})")).rope_theta,
            20000);
  EXPECT_EQ(settings_of(Sharded(R"(,"rope_scaling":null,"rope_theta":30000)")).rope_theta, 30000);
  EXPECT_EQ(settings_of(Sharded()).rope_theta, 10000);
  EXPECT_EQ(Sharded(R"(,"rope_scaling":{"rope_type":"yarn","factor":8.0})").error(),
            "cannot use DIR/config.json (kolo does not support its 'rope_scaling'); give a plain Llama checkpoint");
  EXPECT_EQ(Sharded(R"(,"hidden_act":"gelu")").error(),
            "cannot use DIR/config.json (kolo does not support its 'hidden_act'); give a plain Llama checkpoint");
  EXPECT_EQ(Sharded(R"(,"head_dim":16)").error(),
            "cannot use DIR/config.json (kolo does not support its 'head_dim'); give a plain Llama checkpoint");
  EXPECT_EQ(Sharded(R"(,"attention_bias":true)").error(),
            "cannot use DIR/config.json (kolo does not support its 'attention_bias'); give a plain Llama checkpoint");
}

/// What checkpoints of some years ago hold besides, and heads that are stored although they are tied.
TEST(Pretrained, BuffersAndTiedHeadsAreLeftOut) {
  LlamaSettings tied = llama_preset("tiny");
  tied.tied_head = true;
  BoundLlama llama(tied);
  const TempFolder folder;
  const HostValues values(llama.model);
  std::vector<NamedValues> tensors(values.all().begin(), values.all().end());
  const std::vector<float> frequencies(4, 0.5f);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, frequencies});
  tensors.push_back({"model.rotary_emb.inv_freq", {4}, frequencies});
  const AlignedFloats embedding(llama.values.begin(), llama.values.begin() + 256 * 32);
  tensors.push_back({"lm_head.weight", {256, 32}, embedding});
  write_safetensors(folder / "model.safetensors", tensors);
  write_file(folder / "config.json", config_text("llama", {.llama = tied}, DType::f32));
  const auto load = [&] {
    const Pretrained pretrained(folder.path());
    ModelSettings settings;
    pretrained.settings(settings);
    BoundLlama loaded(settings.llama);
    std::ranges::fill(loaded.values, 0.0f);
    pretrained.load(loaded.model);
    return loaded.values;
  };
  EXPECT_EQ(load(), llama.values);
  AlignedFloats other = embedding;
  other.back() += 1;
  const std::string refused =
      "cannot use DIR (its config ties the head to the embedding, and its 'lm_head.weight' is another matrix); give a "
      "checkpoint as tools store it, whole";
  tensors.back().values = other;
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(error_of(load, folder.path()), refused);
  tensors.back() = {"lm_head.weight", {32, 256}, embedding};
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(error_of(load, folder.path()), refused);
  tensors.back() = {"model.layers.0.self_attn.q_proj.bias", {4}, frequencies};
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(
      error_of(load, folder.path()),
      "DIR does not fit the model (not in the model: 'model.layers.0.self_attn.q_proj.bias'); give a file of this "
      "model's parameters");
}

/// Found before there is memory for a model of the sizes that the config says.
TEST(Pretrained, ShapesThatAConfigDenies) {
  const auto refused = [](const std::string& what) {
    return "cannot use DIR (its tensors are not of the sizes that its config says: " + what +
           "); give a checkpoint as tools store it, whole";
  };
  EXPECT_EQ(Sharded(R"(,"hidden_size":16000000,"num_attention_heads":4000000,"num_key_value_heads":4000000)").error(),
            refused("dim 32 and not 16000000, numbers of a key 16 and not 16000000"));
  EXPECT_EQ(Sharded(R"(,"num_hidden_layers":3,"intermediate_size":89)").error(),
            refused("layers 2 and not 3, ffn 88 and not 89"));
  EXPECT_EQ(Sharded(R"(,"vocab_size":255)").error(), refused("vocab 256 and not 255"));
}

TEST(Pretrained, AFileAloneLeavesTheSizesAsGiven) {
  const TempFolder folder;
  BoundLlama llama(llama_preset("tiny"));
  save_parameters(folder / "model.safetensors", llama.model);
  ModelSettings settings{.llama = llama_preset("tiny")};
  settings.llama.rope_theta = 7;
  settings.llama.tied_head = true;  // but the file has a head
  Pretrained(folder / "model.safetensors").settings(settings);
  EXPECT_EQ(settings.llama.rope_theta, 7);
  EXPECT_FALSE(settings.llama.tied_head);
  write_file(folder / "config.json",
             R"({"hidden_size":32,"num_attention_heads":4,"num_key_value_heads":2,"rope_theta":8})");
  Pretrained(folder / "model.safetensors").settings(settings);
  EXPECT_EQ(settings.llama.rope_theta, 8);
  Pretrained(folder.path()).settings(settings);  // the folder's model.safetensors
}

TEST(Pretrained, CnnSizesComeFromShapes) {
  const TempFolder folder;
  testing::Bound<Cnn> cnn(
      CnnSettings{.channels = 3, .height = 32, .width = 32, .filters = 8, .dense = 5, .classes = 4});
  save_parameters(folder / "x", cnn.model);
  const Pretrained pretrained(folder / "x");
  EXPECT_EQ(pretrained.model(), "cnn");
  ModelSettings settings;
  pretrained.settings(settings);
  EXPECT_EQ(settings.cnn.channels, 3);
  EXPECT_EQ(settings.cnn.height, 32);
  EXPECT_EQ(settings.cnn.filters, 8);
  EXPECT_EQ(settings.cnn.dense, 5);
  EXPECT_EQ(settings.cnn.classes, 4);
}

/// Files once had a bias in front of the norm: what it does to the running mean is undone.
TEST(Pretrained, BiasInFrontOfANormGoesIntoTheRunningMean) {
  const TempFolder folder;
  const CnnSettings settings{.height = 8, .width = 8, .filters = 2, .dense = 3, .classes = 4, .batch_norm = true};
  const auto values_of = [](const Model& model) {
    std::vector<NamedValues> all;
    for (const Parameter& parameter : model.parameters()) {
      all.push_back({parameter.name, parameter.shape, testing::floats_of(parameter.value)});
    }
    return all;
  };
  const testing::Bound<Cnn> saved(settings);
  const std::vector<float> bias{0.25f, -0.5f}, mean{1.25f, 0.5f};
  const auto load = [&](std::vector<NamedValues> tensors) {
    write_safetensors(folder / "x", tensors);
    auto loaded = std::make_unique<testing::Bound<Cnn>>(settings);
    const std::string remark = Pretrained(folder / "x").load(loaded->model);
    return std::pair{std::move(loaded), remark};
  };
  std::vector<NamedValues> tensors = values_of(saved.model);
  EXPECT_EQ(load(tensors).second, "");
  const auto found = std::ranges::find(tensors, "bn1.running_mean", &NamedValues::name);
  found->values = mean;
  tensors.push_back({"conv1.bias", {2}, bias});
  const auto [loaded, remark] = load(tensors);
  EXPECT_EQ(remark, "its conv1.bias is left out, and taken from bn1.running_mean: the norm takes it away");
  for (const NamedValues& now : values_of(loaded->model)) {
    if (now.name == "bn1.running_mean") {
      EXPECT_EQ(std::vector<float>(now.values.begin(), now.values.end()), (std::vector<float>{1, 1}));
    }
    if (now.name == "conv1.weight") {
      EXPECT_TRUE(std::ranges::equal(now.values, tensors[0].values));
    }
  }
  tensors.back() = {"conv1.bias", {1}, std::span(bias).first(1)};
  EXPECT_EQ(error_of([&] { load(tensors); }, folder.path()),
            "cannot use DIR/x (its 'conv1.bias' is not of the size of 'bn1.running_mean'); give a checkpoint as tools "
            "store it, whole");
  const std::vector<float> infinite{1, INFINITY};
  tensors.back() = {"conv1.bias", {2}, infinite};
  EXPECT_EQ(error_of([&] { load(tensors); }, folder.path()),
            "cannot use DIR/x (its 'conv1.bias' holds numbers that are infinite or NaN); give a checkpoint as tools "
            "store it, whole");
}

TEST(Pretrained, DamagedFoldersAreErrors) {
  const Sharded sharded;
  const auto with_index = [&](const std::string& map) {
    sharded.write_index(map);
    return sharded.error();
  };
  EXPECT_EQ(
      with_index(R"({"a":"../part-1.safetensors"})"),
      "cannot use DIR/model.safetensors.index.json ('../part-1.safetensors' is not the name of a file beside it); "
      "give a checkpoint as tools store it, whole");
  EXPECT_EQ(with_index("7"),
            "cannot use DIR/model.safetensors.index.json (it has no 'weight_map'); "
            "give a checkpoint as tools store it, whole");
  EXPECT_EQ(with_index("7}"),
            "cannot use DIR/model.safetensors.index.json (it holds no JSON object); "
            "give a checkpoint as tools store it, whole");
  EXPECT_EQ(with_index(std::string(100000, '[')),
            "cannot use DIR/model.safetensors.index.json (it holds no JSON object); "
            "give a checkpoint as tools store it, whole");
  EXPECT_EQ(with_index(R"({"a":"gone.safetensors"})"),
            "cannot read DIR/gone.safetensors (No such file or directory); give a complete .safetensors file");
  EXPECT_EQ(with_index(R"({"model.layers.1.mlp.up_proj.weight":"part-1.safetensors"})"),
            "cannot use DIR/model.safetensors.index.json ('model.layers.1.mlp.up_proj.weight' is not in "
            "part-1.safetensors, as it says); give a checkpoint as tools store it, whole");
  EXPECT_EQ(with_index(R"({"model.norm.weight":"part-1.safetensors"})"),
            "cannot use DIR (its tensors are not of the sizes that its config says: layers 1 and not 2); give a "
            "checkpoint as tools store it, whole");
  const TempFolder empty;
  EXPECT_EQ(error_of([&] { Pretrained{empty.path()}; }, empty.path()),
            "cannot read DIR/model.safetensors (No such file or directory); give a complete .safetensors file");
  const std::vector<float> values(1);
  const std::vector<NamedValues> stranger{{"weights", {1}, values}};
  write_safetensors(empty / "model.safetensors", stranger);
  EXPECT_EQ(error_of([&] { Pretrained(empty.path()).model(); }, empty.path()),
            "cannot use DIR (its tensors fit no known model: mlp, cnn or llama); give a checkpoint of one of "
            "these");
}

}  // namespace
}  // namespace kolo::models

#include "models/llama/saved_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/llama/config.h"
#include "models/llama/pretrained.h"
#include "models/llama/shape.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;
using testing::BoundLlama;
using testing::error_of;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;
using Names = std::vector<std::string>;

Names names_in(const fs::path& folder) {
  Names names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

SavedModel tiny_llama() {
  return {.model = "llama", .settings = {.llama = llama_preset("tiny")}};
}

/// What a program that starts from `path` has.
AlignedFloats values_from(const fs::path& path) {
  const Pretrained pretrained(path);
  ModelSettings settings;
  pretrained.settings(settings);
  BoundLlama llama(settings.llama);
  std::ranges::fill(llama.values, 0.0f);
  pretrained.load(llama.model);
  return llama.values;
}

/// Shards are as large as they may be, in the order of parameters; the index has every tensor once.
TEST(SavedModel, ShardsAndTheirIndex) {
  const TempFolder folder;
  BoundLlama llama(llama_preset("tiny"));
  SavedModel saved = tiny_llama();
  for (const DType stored : {DType::f32, DType::bf16}) {
    saved.stored = stored;
    saved.shard_bytes = 33000;  // an embedding of 32 768 in f32
    saved.write(folder / "m", llama.model);
    const auto index = nlohmann::json::parse(read_file(folder / "m/model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], llama.values.size() * size_of(stored));
    ASSERT_EQ(index["weight_map"].size(), llama.model.parameters().size());
    std::size_t shards = 0;
    std::uint64_t filled = 0;
    std::string in;
    for (const Parameter& parameter : llama.model.parameters()) {
      const auto name = index["weight_map"][parameter.name].get<std::string>();
      const std::uint64_t bytes = static_cast<std::uint64_t>(parameter.shape.elements()) * size_of(stored);
      const SafetensorsFile file(folder / "m" / name);
      const StoredTensor* const tensor = file.find(parameter.name);
      ASSERT_NE(tensor, nullptr) << parameter.name << " in " << name;
      EXPECT_EQ(tensor->end - tensor->begin, bytes);
      if (name != in) {
        EXPECT_TRUE(in.empty() || filled + bytes > saved.shard_bytes) << name << " begins too early";
        EXPECT_LT(in, name);
        in = name;
        filled = 0;
        ++shards;
      }
      filled += bytes;
      EXPECT_LE(filled, saved.shard_bytes);
    }
    EXPECT_EQ(shards, stored == DType::f32 ? 6u : 3u);
    EXPECT_TRUE(fs::exists(folder / "m" / fmt::format("model-00001-of-{:05}.safetensors", shards)));
    EXPECT_FALSE(fs::exists(folder / "m/model.safetensors"));
    if (stored == DType::f32) {
      EXPECT_EQ(values_from(folder / "m"), llama.values);
    }
  }
  saved.stored = DType::f32;
  saved.shard_bytes = 1;  // a tensor for each file, which may be larger
  saved.write(folder / "m", llama.model);
  EXPECT_EQ(names_in(folder / "m").size(), llama.model.parameters().size() + 3);
  EXPECT_EQ(values_from(folder / "m"), llama.values);
  saved.shard_bytes = llama.values.size() * 4;
  saved.write(folder / "m", llama.model);
  EXPECT_EQ(names_in(folder / "m"), (Names{"config.json", "generation_config.json", "model.safetensors"}));
  EXPECT_EQ(values_from(folder / "m"), llama.values);
}

/// config.json keeps what a public checkpoint says besides, and what kolo knows comes back as it was.
TEST(SavedModel, ConfigsComeBack) {
  LlamaSettings llama{.vocabulary = 300,
                      .dim = 24,
                      .layers = 3,
                      .heads = 6,
                      .kv_heads = 3,
                      .ffn = 40,
                      .positions = 77,
                      .rope_theta = 123456.789,
                      .norm_eps = 3e-7,
                      .tied_head = true};
  for (const bool scaled : {false, true}) {
    if (scaled) llama.rope_scaling = RopeScaling{.factor = 32, .low_freq_factor = 1.5, .original_positions = 100};
    const std::string base = R"({"eos_token_id":[5,6],"rope_parameters":{"rope_type":"yarn"},"dtype":"float16"})";
    const std::string text = config_text("llama", {.llama = llama}, DType::bf16, base);
    ModelSettings back;
    read_config(text, "x", "llama", back);
    EXPECT_EQ(back.llama.vocabulary, 300);
    EXPECT_EQ(back.llama.dim, 24);
    EXPECT_EQ(back.llama.layers, 3);
    EXPECT_EQ(back.llama.heads, 6);
    EXPECT_EQ(back.llama.kv_heads, 3);
    EXPECT_EQ(back.llama.ffn, 40);
    EXPECT_EQ(back.llama.positions, 77);
    EXPECT_EQ(back.llama.rope_theta, 123456.789);
    EXPECT_EQ(back.llama.norm_eps, 3e-7);
    EXPECT_TRUE(back.llama.tied_head);
    EXPECT_EQ(back.llama.rope_scaling, llama.rope_scaling);
    const auto json = nlohmann::json::parse(text);
    EXPECT_EQ(json["eos_token_id"], (std::vector<int>{5, 6}));
    EXPECT_EQ(json["bos_token_id"], nullptr);
    EXPECT_EQ(json["torch_dtype"], "bfloat16");
    EXPECT_EQ(json["architectures"][0], "LlamaForCausalLM");
    EXPECT_FALSE(json.contains("dtype"));
  }
  ModelSettings back;
  read_config(config_text("cnn", {.cnn = {.height = 30, .width = 20, .classes = 3, .batch_norm = true}}, DType::f32),
              "x", "cnn", back);
  EXPECT_EQ(back.cnn.height, 30);
  EXPECT_EQ(back.cnn.width, 20);
  EXPECT_EQ(back.cnn.classes, 3);
  EXPECT_TRUE(back.cnn.batch_norm);
  read_config(config_text("mlp", {.sizes = {3, 2}}, DType::f32), "x", "mlp", back);
  EXPECT_EQ(back.sizes, (std::vector<std::int64_t>{3, 2}));
}

/// What a public config.json leaves out is what transformers takes, and not what a preset had.
TEST(SavedModel, WhatAConfigLeavesOut) {
  const auto llama_of = [](const std::string& text) {
    ModelSettings settings{.llama = llama_preset("tiny")};
    read_config(text, "x", "llama", settings);
    return settings.llama;
  };
  const std::string scaling = R"("rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4)";
  EXPECT_EQ(llama_of("{}").positions, 2048);
  EXPECT_EQ(llama_of(R"({"rope_scaling":{)" + scaling + "}}").rope_scaling->original_positions, 2048);
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const std::string text = R"({"max_position_embeddings":64,")" + key + R"(":{)" + scaling;
    EXPECT_EQ(llama_of(text + "}}").rope_scaling->original_positions, 64);
    EXPECT_EQ(llama_of(text + R"(,"original_max_position_embeddings":32}})").rope_scaling->original_positions, 32);
  }
}

TEST(SavedModel, ConfigsOfOthersAreErrors) {
  const auto error = [](const std::string& model, const std::string& text) {
    return error_of([&] {
      ModelSettings settings;
      read_config(text, "DIR/config.json", model, settings);
    });
  };
  const std::string llama = "; give a plain Llama checkpoint", own = "; give a folder that kolo wrote";
  const auto refused = [](const std::string& key, const std::string& advice) {
    return "cannot use DIR/config.json (kolo does not support its '" + key + "')" + advice;
  };
  EXPECT_EQ(error("llama", R"({"model_type":"mistral"})"), refused("model_type", llama));
  EXPECT_EQ(error("llama", R"({"hidden_size":"large"})"), refused("hidden_size", llama));
  EXPECT_EQ(error("llama", R"({"hidden_size":1.5})"), refused("hidden_size", llama));
  EXPECT_EQ(error("llama", R"({"rope_scaling":7})"), refused("rope_scaling", llama));
  EXPECT_EQ(error("llama", R"({"rope_scaling":{"rope_type":7}})"), refused("rope_scaling", llama));
  EXPECT_EQ(error("llama", R"({"rope_scaling":{"type":"llama3","factor":"8"}})"), refused("factor", llama));
  for (const char* const missing : {"factor", "low_freq_factor", "high_freq_factor"}) {
    nlohmann::json scaling{{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
    scaling.erase(missing);
    EXPECT_EQ(
        error("llama", nlohmann::json{{"rope_scaling", scaling}}.dump()),
        fmt::format("cannot use DIR/config.json (its rope_scaling of type 'llama3' has no '{}'){}", missing, llama));
  }
  EXPECT_EQ(error("mlp", R"({"model_type":"llama"})"), refused("model_type", own));
  EXPECT_EQ(error("mlp", R"({"sizes":[3,"2"]})"), refused("sizes", own));
  EXPECT_EQ(error("cnn", R"({"batch_norm":1})"), refused("batch_norm", own));
  EXPECT_EQ(error("cnn", "{"),
            "cannot use DIR/config.json (it holds no JSON object); give a checkpoint as tools store "
            "it, whole");
}

/// What a text of damaged bytes says is refused, or makes a model or none, without undefined behaviour on the way.
TEST(SavedModel, RandomDamageNeverCrashes) {
  LlamaSettings llama = llama_preset("tiny");
  llama.rope_scaling.emplace();
  const std::vector<std::pair<std::string, std::string>> configs{
      {"llama", config_text("llama", {.llama = llama}, DType::f32)},
      {"cnn", config_text("cnn", {}, DType::f32)},
      {"mlp", config_text("mlp", {.sizes = {7, 6, 5}}, DType::f32)}};
  const std::vector<std::string> inserted{"9", "0", "-", "null", "{", "[", "\"", "e99", "99999999999999999", ",", ".5"};
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    auto [model, text] = configs[seed % configs.size()];
    for (std::uint64_t i = 0; i <= seed % 3; ++i) {
      const std::size_t at = random.below(text.size());
      if (random.below(2) == 0) {
        text.insert(at, inserted[random.below(inserted.size())]);
      } else {
        text.erase(at, 1 + random.below(3));
      }
    }
    const std::string error = error_of([&] {
      ModelSettings settings;
      read_config(text, "DIR/config.json", model, settings);
      if (model == "llama") LlamaShape{settings.llama};
    });
    ASSERT_TRUE(error == "no error" || error.starts_with("cannot use DIR/config.json (") ||
                error.starts_with("a llama") || error.find("key and value heads") != error.npos)
        << error << '\n'
        << text;
  }
}

/// Nothing of a folder changes until the new one is whole; what is not a model's is never removed.
TEST(SavedModel, AFolderIsOldOrNew) {
  const TempFolder folder;
  BoundLlama llama(llama_preset("tiny"));
  SavedModel saved = tiny_llama();
  saved.companions["tokenizer.json"] = "{}";
  saved.write(folder / "m", llama.model);
  EXPECT_EQ(names_in(folder / "m"),
            (Names{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(read_file(folder / "m/tokenizer.json"), "{}");
  EXPECT_EQ(companions_of(folder / "m").at("tokenizer.json"), "{}");
  EXPECT_EQ(companions_of(folder / "m/model.safetensors").at("tokenizer.json"), "{}");
  const fs::path here = fs::current_path();
  fs::current_path(folder / "m");
  EXPECT_TRUE(companions_of("").empty()) << "no file is read";
  fs::current_path(here);
  EXPECT_EQ(error_of([&] { check_savable(folder / "m"); }), "no error");
  saved.stored = DType::f16;  // which is not written
  EXPECT_EQ(
      error_of([&] { saved.write(folder / "m", llama.model); }, folder.path()),
      "cannot write DIR/.writing-m/model.safetensors (only f32 and bf16 are written); name a file in a folder that "
      "is writable and has room");
  EXPECT_EQ(values_from(folder / "m"), llama.values);
  EXPECT_FALSE(fs::exists(folder / ".writing-m"));
  write_file(folder / "m/notes.txt", "mine");  // while a model was trained
  fs::create_directory(folder / "m/more");
  EXPECT_NE(error_of([&] { saved.write(folder / "m", llama.model); }, folder.path()), "no error");
  EXPECT_EQ(read_file(folder / "m/notes.txt"), "mine") << "it is where it was";
  EXPECT_NE(error_of([&] { check_savable(folder / "m"); }), "no error");
  saved.stored = DType::f32;
  saved.companions.clear();
  saved.write(folder / "m", llama.model);
  EXPECT_EQ(read_file(folder / "m/notes.txt"), "mine");
  EXPECT_TRUE(fs::is_directory(folder / "m/more"));
  EXPECT_FALSE(fs::exists(folder / "m/tokenizer.json")) << "it is of the older model";
}

}  // namespace
}  // namespace kolo::models

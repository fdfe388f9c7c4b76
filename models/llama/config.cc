#include "models/llama/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "models/llama/json_file.h"

namespace kolo::models {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Reads values out of a config.json, one named error for all that cannot be followed.
class Config {
 public:
  /// advice  for errors: what to try
  Config(std::string_view text, const fs::path& path, std::string_view advice)
      : path_(&path), advice_(advice), json_(parse_json_object(text, path)) {}

  /// Null if it is not there, or null.
  const Json* find(const char* key) const { return find(json_, key); }

  /// Puts the value of `key`, a number or a truth value, if it is there.
  template <class Value>
  void get(const char* key, Value& into) const {
    get(json_, key, into);
  }

  /// Refuses what a model does not do: a key that has another value than the only one known.
  void only(const char* key, const Json& known) const {
    const Json* const value = find(key);
    if (value != nullptr && *value != known) unusable(key);
  }

  /// The object of that name; null if it is not there.
  const Json* object(const char* key) const {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_object()) unusable(key);
    return value;
  }

  /// The same of an object in it.
  template <class Value>
  void get(const Json& from, const char* key, Value& into) const {
    const Json* const value = find(from, key);
    if (value == nullptr) return;
    const bool fits = std::is_same_v<Value, bool>     ? value->is_boolean()
                      : std::is_same_v<Value, double> ? value->is_number()
                                                      : value->is_number_integer();
    if (!fits) unusable(key);
    into = value->get<Value>();
  }

  /// The same of a number that must be there. `of` says of what, for errors.
  void need(const Json& from, const char* key, std::string_view of, double& into) const {
    if (find(from, key) == nullptr) refuse_file(*path_, fmt::format("its {} has no '{}'", of, key), advice_);
    get(from, key, into);
  }

  [[noreturn]] void unusable(std::string_view key) const {
    refuse_file(*path_, fmt::format("kolo does not support its '{}'", key), advice_);
  }

 private:
  static const Json* find(const Json& from, const char* key) {
    const auto found = from.find(key);
    return found == from.end() || found->is_null() ? nullptr : &*found;
  }

  const fs::path* path_;
  std::string_view advice_;
  Json json_;
};

/// What may be missing, and what then holds, is as transformers has it.
RopeScaling scaling_of(const Config& config, const Json& rope, std::int64_t positions) {
  constexpr std::string_view of = "rope_scaling of type 'llama3'";
  RopeScaling scaling{.original_positions = positions};
  config.need(rope, "factor", of, scaling.factor);
  config.need(rope, "low_freq_factor", of, scaling.low_freq_factor);
  config.need(rope, "high_freq_factor", of, scaling.high_freq_factor);
  config.get(rope, "original_max_position_embeddings", scaling.original_positions);
  return scaling;
}

/// Newer configs keep the rotary base in "rope_parameters", older ones beside the rest, with "rope_scaling" for what is
/// not plain.
void read_rotations(const Config& config, LlamaSettings& settings) {
  settings.rope_theta = 10000;
  settings.rope_scaling.reset();
  config.get("rope_theta", settings.rope_theta);
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    const Json* const rope = config.object(key);
    if (rope == nullptr) continue;
    const Json type = rope->value("rope_type", rope->value("type", Json("default")));
    if (type == "llama3") {
      settings.rope_scaling = scaling_of(config, *rope, settings.positions);
    } else if (type != "default") {
      config.unusable(key);
    }
    config.get(*rope, "rope_theta", settings.rope_theta);
  }
}

void read_llama(const Config& config, LlamaSettings& settings) {
  config.only("model_type", "llama");
  config.only("hidden_act", "silu");
  config.only("attention_bias", false);
  config.only("mlp_bias", false);
  config.get("vocab_size", settings.vocabulary);
  config.get("hidden_size", settings.dim);
  config.get("num_hidden_layers", settings.layers);
  config.get("num_attention_heads", settings.heads);
  settings.kv_heads = settings.heads;
  config.get("num_key_value_heads", settings.kv_heads);
  config.get("intermediate_size", settings.ffn);
  settings.positions = 2048;
  config.get("max_position_embeddings", settings.positions);
  settings.norm_eps = 1e-6;
  config.get("rms_norm_eps", settings.norm_eps);
  settings.tied_head = false;
  config.get("tie_word_embeddings", settings.tied_head);
  read_rotations(config, settings);
  if (settings.heads < 1) config.unusable("num_attention_heads");
  std::int64_t head_dim = settings.dim / settings.heads;
  config.get("head_dim", head_dim);
  if (settings.dim % settings.heads != 0 || head_dim != settings.dim / settings.heads) config.unusable("head_dim");
}

Json llama_json(const LlamaSettings& settings, DType stored, Json json) {
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = settings.vocabulary;
  json["hidden_size"] = settings.dim;
  json["intermediate_size"] = settings.ffn;
  json["num_hidden_layers"] = settings.layers;
  json["num_attention_heads"] = settings.heads;
  json["num_key_value_heads"] = settings.kv_heads;
  json["head_dim"] = settings.dim / settings.heads;
  json["max_position_embeddings"] = settings.positions;
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["rms_norm_eps"] = settings.norm_eps;
  json["tie_word_embeddings"] = settings.tied_head;
  json["rope_theta"] = settings.rope_theta;
  json["rope_scaling"] = nullptr;
  if (const auto& scaling = settings.rope_scaling) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling->factor},
                            {"low_freq_factor", scaling->low_freq_factor},
                            {"high_freq_factor", scaling->high_freq_factor},
                            {"original_max_position_embeddings", scaling->original_positions}};
  }
  json["torch_dtype"] = stored == DType::bf16 ? "bfloat16" : "float32";
  for (const char* const same_in_other_words : {"rope_parameters", "dtype"}) json.erase(same_in_other_words);
  for (const char* const token : {"bos_token_id", "eos_token_id"}) {  // the format's defaults are some model's
    if (!json.contains(token)) json[token] = nullptr;
  }
  return json;
}

constexpr const char* mlp_type = "kolo_mlp";
constexpr const char* cnn_type = "kolo_cnn";

void read_mlp(const Config& config, std::vector<std::int64_t>& sizes) {
  config.only("model_type", mlp_type);
  const Json* const widths = config.find("sizes");
  if (widths == nullptr) return;
  const auto is_width = [](const Json& width) { return width.is_number_integer(); };
  if (!widths->is_array() || !std::all_of(widths->begin(), widths->end(), is_width)) config.unusable("sizes");
  sizes = widths->get<std::vector<std::int64_t>>();
}

void read_cnn(const Config& config, CnnSettings& settings) {
  config.only("model_type", cnn_type);
  config.get("channels", settings.channels);
  config.get("height", settings.height);
  config.get("width", settings.width);
  config.get("filters", settings.filters);
  config.get("dense", settings.dense);
  config.get("classes", settings.classes);
  config.get("batch_norm", settings.batch_norm);
}

Json cnn_json(const CnnSettings& settings) {
  return {{"model_type", cnn_type},      {"channels", settings.channels},    {"height", settings.height},
          {"width", settings.width},     {"filters", settings.filters},      {"dense", settings.dense},
          {"classes", settings.classes}, {"batch_norm", settings.batch_norm}};
}

}  // namespace

void read_config(std::string_view text, const fs::path& path, std::string_view model, ModelSettings& settings) {
  const Config config(text, path, model == "llama" ? "give a plain Llama checkpoint" : "give a folder that kolo wrote");
  if (model == "llama") read_llama(config, settings.llama);
  if (model == "mlp") read_mlp(config, settings.sizes);
  if (model == "cnn") read_cnn(config, settings.cnn);
}

std::string config_text(std::string_view model, const ModelSettings& settings, DType stored, std::string_view base) {
  Json json = Json::object();
  if (model == "llama") json = llama_json(settings.llama, stored, base.empty() ? json : Json::parse(base));
  if (model == "mlp") json = {{"model_type", mlp_type}, {"sizes", settings.sizes}};
  if (model == "cnn") json = cnn_json(settings.cnn);
  if (json.empty()) {  // a model of somebody's own
    json["model_type"] = fmt::format("kolo_{}", model);
    json.update(settings.own);
  }
  return json.dump(2) + "\n";
}

}  // namespace kolo::models

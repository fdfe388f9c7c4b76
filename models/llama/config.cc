#include <fmt/format.h>

#include <string>

#include "models/checkpoint/json_file.h"
#include "models/llama/pretrained.h"
#include "models/model/settings.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

using nlohmann::json;

/// Reads numbers out of a config.json, one named error for all that cannot be followed.
class Config {
 public:
  explicit Config(const std::filesystem::path& path) : path_(&path), json_(read_json_object(path)) {}

  void whole(const char* key, std::int64_t& into) const {
    const json* const value = find(key);
    if (value == nullptr) return;
    if (!value->is_number_integer()) unusable(key);
    into = value->get<std::int64_t>();
  }
  void real(const char* key, double& into) const {
    const json* const value = find(key);
    if (value == nullptr) return;
    if (!value->is_number()) unusable(key);
    into = value->get<double>();
  }
  void truth(const char* key, bool& into) const {
    const json* const value = find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) unusable(key);
    into = value->get<bool>();
  }
  /// Refuses what this model does not do: a key that has another value than the only one known.
  void only(const char* key, const json& known) const {
    const json* const value = find(key);
    if (value != nullptr && *value != known) unusable(key);
  }
  /// Null if it is not there, or null.
  const json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void unusable(std::string_view key) const {
    refuse_file(*path_, fmt::format("kolo does not support its '{}'", key), "give a plain Llama checkpoint");
  }

 private:
  const std::filesystem::path* path_;
  json json_;
};

/// Newer configs keep the rotary base in "rope_parameters", older ones beside the rest, with "rope_scaling" for what is
/// not plain.
void read_rotations(const Config& config, double& theta) {
  config.real("rope_theta", theta);
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    const json* const rope = config.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) config.unusable(key);
    const std::string type = rope->value("rope_type", rope->value("type", json("default"))).dump();
    if (type != "\"default\"") config.unusable(key);
    const auto base = rope->find("rope_theta");
    if (base == rope->end()) continue;
    if (!base->is_number()) config.unusable(key);
    theta = base->get<double>();
  }
}

}  // namespace

LlamaSettings llama_config(const std::filesystem::path& path, LlamaSettings settings) {
  const Config config(path);
  config.only("model_type", "llama");
  config.only("hidden_act", "silu");
  config.only("attention_bias", false);
  config.only("mlp_bias", false);
  config.whole("vocab_size", settings.vocabulary);
  config.whole("hidden_size", settings.dim);
  config.whole("num_hidden_layers", settings.layers);
  config.whole("num_attention_heads", settings.heads);
  settings.kv_heads = settings.heads;
  config.whole("num_key_value_heads", settings.kv_heads);
  config.whole("intermediate_size", settings.ffn);
  config.whole("max_position_embeddings", settings.positions);
  config.real("rms_norm_eps", settings.norm_eps);
  settings.tied_head = false;
  config.truth("tie_word_embeddings", settings.tied_head);
  settings.rope_theta = 10000;
  read_rotations(config, settings.rope_theta);
  std::int64_t head_dim = settings.heads > 0 ? settings.dim / settings.heads : 0;
  config.whole("head_dim", head_dim);
  if (head_dim * settings.heads != settings.dim) config.unusable("head_dim");
  return settings;
}

}  // namespace kolo::models

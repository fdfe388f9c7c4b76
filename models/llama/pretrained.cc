#include "models/llama/pretrained.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/checkpoint/checkpoint.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Throws ModelError: *cannot use FILE (reason); advice*.
[[noreturn]] void refuse_file(const fs::path& path, std::string_view reason,
                              std::string_view advice = "give a checkpoint as tools store it, whole") {
  throw ModelError(fmt::format("cannot use {} ({}); {}", path.string(), reason, advice));
}

json read_json_object(const fs::path& path) {
  constexpr std::uintmax_t longest = 100'000'000;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) refuse_file(path, error.message());
  if (bytes > longest) refuse_file(path, fmt::format("{} bytes are too many for it", bytes));
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const int depth_limit = 64;
  bool too_deep = false;
  auto parsed = json::parse(
      text,
      [&](int depth, json::parse_event_t, json&) {
        too_deep = too_deep || depth > depth_limit;
        return !too_deep;
      },
      false);
  if (too_deep || parsed.is_discarded() || !parsed.is_object()) refuse_file(path, "it holds no JSON object");
  return parsed;
}

/// What an index says: the names of tensors, by the files beside it. A name that leads elsewhere is refused.
std::map<std::string, std::vector<std::string>> tensors_by_file(const fs::path& index) {
  const json parsed = read_json_object(index);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object() || map->empty()) {
    refuse_file(index, "it has no 'weight_map'");
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) refuse_file(index, fmt::format("{} is in no file", in_quotes(tensor)));
    const auto name = file.get<std::string>();
    if (name.empty() || name != fs::path(name).filename().string() || name == "." || name == "..") {
      refuse_file(index, fmt::format("{} is not the name of a file beside it", in_quotes(name)));
    }
    files[name].push_back(tensor);
  }
  return files;
}

/// The files that an index lists, which have the tensors that it says.
std::vector<SafetensorsFile> open_listed(const fs::path& index) {
  std::vector<SafetensorsFile> files;
  for (const auto& [name, tensors] : tensors_by_file(index)) {
    const SafetensorsFile& file = files.emplace_back(index.parent_path() / name);
    const auto lost = std::ranges::find_if(tensors, [&](const auto& tensor) { return file.find(tensor) == nullptr; });
    if (lost != tensors.end()) {
      refuse_file(index, fmt::format("{} is not in {}, as it says", in_quotes(*lost), name));
    }
  }
  return files;
}

/// Reads numbers out of a config.json, one named error for all that cannot be followed.
class Config {
 public:
  explicit Config(const fs::path& path) : path_(&path), json_(read_json_object(path)) {}

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
  const fs::path* path_;
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

/// A size of a Llama, by the shapes that a file holds and by the settings.
struct ShapedSize {
  std::string_view name;
  std::int64_t held, asked;
};

}  // namespace

struct Pretrained::Contents {
  explicit Contents(fs::path given) : path(std::move(given)) {
    std::error_code ignored;
    const bool folder = fs::is_directory(path, ignored);
    const fs::path index = path / "model.safetensors.index.json";
    const fs::path config_file = (folder ? path : path.parent_path()) / "config.json";
    if (folder && fs::exists(index, ignored)) {
      files = open_listed(index);
    } else {
      files.emplace_back(folder ? path / "model.safetensors" : path);
    }
    if (fs::exists(config_file, ignored)) config = config_file;
  }

  bool has(std::string_view name) const {
    return std::ranges::any_of(files, [&](const SafetensorsFile& file) { return file.find(name) != nullptr; });
  }

  /// 0 if there is none of that name, or it has fewer dimensions.
  std::int64_t extent(std::string_view name, std::size_t dimension) const {
    for (const SafetensorsFile& file : files) {
      const StoredTensor* const tensor = file.find(name);
      if (tensor != nullptr && dimension < tensor->shape.size()) {
        return static_cast<std::int64_t>(tensor->shape[dimension]);
      }
    }
    return 0;
  }

  std::int64_t layers() const {
    std::int64_t count = 0;
    while (has(fmt::format("model.layers.{}.input_layernorm.weight", count))) ++count;
    return count;
  }

  void check_shapes(const LlamaSettings& asked) const;

  fs::path path;
  std::vector<SafetensorsFile> files;
  std::optional<fs::path> config;
};

/// Errors: ModelError that lists the sizes which differ.
void Pretrained::Contents::check_shapes(const LlamaSettings& asked) const {
  const std::string layer = "model.layers.0.";
  const std::array sizes{ShapedSize{"dim", extent("model.embed_tokens.weight", 1), asked.dim},
                         ShapedSize{"layers", layers(), asked.layers},
                         ShapedSize{"numbers of a key", extent(layer + "self_attn.k_proj.weight", 0),
                                    asked.dim / std::max<std::int64_t>(asked.heads, 1) * asked.kv_heads},
                         ShapedSize{"ffn", extent(layer + "mlp.gate_proj.weight", 0), asked.ffn},
                         ShapedSize{"vocab", extent("model.embed_tokens.weight", 0), asked.vocabulary}};
  std::vector<std::string> differ;
  for (const ShapedSize& size : sizes) {
    if (size.held != size.asked) differ.push_back(fmt::format("{} {} and not {}", size.name, size.held, size.asked));
  }
  if (differ.empty()) return;
  throw ModelError(
      fmt::format("{} holds a Llama of other sizes ({}), and there is no config.json beside it; give its --dim "
                  "--layers --heads --kv-heads --ffn --vocab, or its --preset",
                  path.string(), fmt::join(differ, ", ")));
}

Pretrained::Pretrained(fs::path path) : contents_(std::make_unique<Contents>(std::move(path))) {}
Pretrained::~Pretrained() = default;
Pretrained::Pretrained(Pretrained&&) noexcept = default;
Pretrained& Pretrained::operator=(Pretrained&&) noexcept = default;

std::string Pretrained::model() const {
  if (contents_->has("model.embed_tokens.weight")) return "llama";
  if (contents_->has("conv1.weight")) return "cnn";
  if (contents_->has("layers.0.weight")) return "mlp";
  refuse_file(contents_->path, "its tensors fit no known model: mlp, cnn or llama",
              "give a checkpoint of one of these");
}

std::int64_t Pretrained::extent(std::string_view tensor, std::size_t dimension) const {
  return contents_->extent(tensor, dimension);
}

void Pretrained::load(const Model& model) const {
  load_parameters(contents_->files, contents_->path, model);
}

void Pretrained::settings(ModelSettings& settings) const {
  const std::string kind = model();
  if (kind == "mlp") settings.sizes = mlp_sizes(contents_->files.front());
  if (kind == "cnn") settings.cnn = cnn_sizes(contents_->files.front(), settings.cnn);
  if (kind != "llama") return;
  settings.llama.tied_head = !contents_->has("lm_head.weight");
  if (contents_->config) {
    settings.llama = llama_config(*contents_->config, settings.llama);
  } else {
    contents_->check_shapes(settings.llama);
  }
}

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

#include "models/llama/pretrained.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/checkpoint/checkpoint.h"
#include "models/compute/views.h"
#include "models/llama/config.h"
#include "models/llama/json_file.h"
#include "models/llama/shape.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

/// What an index says: the names of tensors, by the files beside it. A name that leads elsewhere is refused.
std::map<std::string, std::vector<std::string>> tensors_by_file(const fs::path& index) {
  const auto parsed = parse_json_object(read_text_file(index), index);
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

constexpr std::string_view head_name = "lm_head.weight", embedding_name = "model.embed_tokens.weight";
constexpr std::string_view normed_bias = "conv1.bias", normed_mean = "bn1.running_mean";

/// A size of a Llama, by the shapes that a file holds and by the settings.
struct ShapedSize {
  std::string_view name;
  std::int64_t held, said;
};

}  // namespace

std::optional<fs::path> model_folder(const fs::path& path) {
  std::error_code ignored;
  if (path.empty()) return std::nullopt;  // no file is read: what lies in the current folder is of no interest
  if (fs::is_directory(path, ignored)) return path;
  fs::path folder = path.parent_path();
  return fs::exists(folder / config_key, ignored) ? std::optional(std::move(folder)) : std::nullopt;
}

struct Pretrained::Contents {
  explicit Contents(fs::path given) : path(std::move(given)) {
    std::error_code ignored;
    const bool folder = fs::is_directory(path, ignored);
    const fs::path whole = path / "model.safetensors", index = path / "model.safetensors.index.json";
    if (folder && !fs::exists(whole, ignored) && fs::exists(index, ignored)) {
      files = open_listed(index);
    } else {
      files.emplace_back(folder ? whole : path);
    }
    if (const auto others = model_folder(path); others && (folder || has(embedding_name)))
      config = *others / config_key;
    if (config && !fs::exists(*config, ignored)) config.reset();
    const auto& metadata = files.front().metadata();
    if (const auto found = metadata.find(config_key); found != metadata.end()) held_config = found->second;
  }

  bool has(std::string_view name) const { return find_in(files, name).tensor != nullptr; }

  /// 0 if there is none of that name, or it has fewer dimensions.
  std::int64_t extent(std::string_view name, std::size_t dimension) const {
    const StoredTensor* const tensor = find_in(files, name).tensor;
    if (tensor == nullptr || dimension >= tensor->shape.size()) return 0;
    return static_cast<std::int64_t>(tensor->shape[dimension]);
  }

  std::int64_t layers() const {
    std::int64_t count = 0;
    while (has(fmt::format("model.layers.{}.input_layernorm.weight", count))) ++count;
    return count;
  }

  void check_shapes(const LlamaSettings& said) const;
  void check_head(const Model& model) const;
  std::vector<float> bias_before_norm(const Model& model) const;

  fs::path path;
  std::vector<SafetensorsFile> files;
  std::optional<fs::path> config;          // config.json
  std::optional<std::string> held_config;  // the text of one in the file's metadata
};

/// Before there is storage for a model of these sizes.
void Pretrained::Contents::check_shapes(const LlamaSettings& said) const {
  const LlamaShape shape(said);  // no product below overflows
  const std::string layer = "model.layers.0.";
  const std::array all{
      ShapedSize{"dim", extent(embedding_name, 1), said.dim}, ShapedSize{"layers", layers(), said.layers},
      ShapedSize{"numbers of a key", extent(layer + "self_attn.k_proj.weight", 0), shape.head_dim * shape.kv_heads},
      ShapedSize{"ffn", extent(layer + "mlp.gate_proj.weight", 0), said.ffn},
      ShapedSize{"vocab", extent(embedding_name, 0), said.vocabulary}};
  std::vector<std::string> differ;
  for (const ShapedSize& size : all) {
    if (size.held != size.said) differ.push_back(fmt::format("{} {} and not {}", size.name, size.held, size.said));
  }
  if (differ.empty()) return;
  if (config || held_config) {
    refuse_file(path,
                fmt::format("its tensors are not of the sizes that its config says: {}", fmt::join(differ, ", ")));
  }
  throw ModelError(
      fmt::format("{} holds a Llama of other sizes ({}), and there is no config.json beside it; give its --dim "
                  "--layers --heads --kv-heads --ffn --vocab, or its --preset",
                  path.string(), fmt::join(differ, ", ")));
}

/// A tied head that is stored twice must be one.
void Pretrained::Contents::check_head(const Model& model) const {
  const Found head = find_in(files, head_name), embedding = find_in(files, embedding_name);
  const std::span<const Parameter> parameters = model.parameters();
  const bool own = std::ranges::find(parameters, head_name, &Parameter::name) != parameters.end();
  if (own || head.tensor == nullptr || embedding.tensor == nullptr) return;
  bool same = head.tensor->shape == embedding.tensor->shape;
  if (same) {
    std::vector<float> one(static_cast<std::size_t>(parameters.front().shape.elements())), other(one.size());
    head.file->read(*head.tensor, one);
    embedding.file->read(*embedding.tensor, other);
    same = one == other;
  }
  if (!same) {
    refuse_file(path,
                fmt::format("its config ties the head to the embedding, and its '{}' is another matrix", head_name));
  }
}

const Parameter* parameter_of(const Model& model, std::string_view name) {
  const std::span<const Parameter> parameters = model.parameters();
  const auto found = std::ranges::find(parameters, name, &Parameter::name);
  return found == parameters.end() ? nullptr : &*found;
}

/// The bias that files of a CNN with batch norm had once, though the norm takes it away again; empty: there is none.
std::vector<float> Pretrained::Contents::bias_before_norm(const Model& model) const {
  const Found bias = find_in(files, normed_bias);
  const Parameter* const mean = parameter_of(model, normed_mean);
  if (bias.tensor == nullptr || mean == nullptr || parameter_of(model, normed_bias) != nullptr) return {};
  std::vector<float> values(static_cast<std::size_t>(mean->shape.elements()));
  if (extent(normed_bias, 0) != mean->shape.elements() || bias.tensor->shape.size() != 1) {
    refuse_file(path, fmt::format("its '{}' is not of the size of '{}'", normed_bias, normed_mean));
  }
  bias.file->read(*bias.tensor, values);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    refuse_file(path, fmt::format("its '{}' holds numbers that are infinite or NaN", normed_bias));
  }
  return values;
}

/// What shapes do not tell must be the same in a file and in the config.json beside it.
void check_same(const fs::path& config, const LlamaSettings& said, const fs::path& file, const LlamaSettings& held) {
  std::vector<std::string> differ;
  const auto compare = [&](std::string_view name, auto of_config, auto of_file) {
    if (of_config != of_file) differ.push_back(fmt::format("{} {} and not {}", name, of_file, of_config));
  };
  compare("heads", said.heads, held.heads);
  compare("kv-heads", said.kv_heads, held.kv_heads);
  compare("rope-theta", said.rope_theta, held.rope_theta);
  compare("norm-eps", said.norm_eps, held.norm_eps);
  if (said.rope_scaling != held.rope_scaling) differ.emplace_back("another rope_scaling");
  if (differ.empty()) return;
  refuse_file(config, fmt::format("{} says otherwise: {}", file.string(), fmt::join(differ, ", ")),
              "give the config.json of that file, or the file alone");
}

Pretrained::Pretrained(fs::path path) : contents_(std::make_unique<Contents>(std::move(path))) {}
Pretrained::~Pretrained() = default;
Pretrained::Pretrained(Pretrained&&) noexcept = default;
Pretrained& Pretrained::operator=(Pretrained&&) noexcept = default;

bool Pretrained::knows(std::string_view kind) {
  return kind == "mlp" || kind == "cnn" || kind == "llama";
}

std::string Pretrained::model() const {
  if (contents_->has(embedding_name)) return "llama";
  if (contents_->has("conv1.weight")) return "cnn";
  if (contents_->has("layers.0.weight")) return "mlp";
  refuse_file(contents_->path, "its tensors fit no known model: mlp, cnn or llama",
              "give a checkpoint of one of these");
}

std::string Pretrained::said_model() const {
  constexpr std::string_view ours = "kolo_";
  std::string text = contents_->held_config.value_or("");
  if (text.empty() && contents_->config) text = read_text_file(*contents_->config);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto type = json.is_object() ? json.find("model_type") : json.end();
  if (type == json.end() || !type->is_string()) return "";
  const auto said = type->get<std::string>();
  return said.starts_with(ours) ? said.substr(ours.size()) : "";
}

std::int64_t Pretrained::extent(std::string_view tensor, std::size_t dimension) const {
  return contents_->extent(tensor, dimension);
}

std::string Pretrained::load(Model& model) const {
  contents_->check_head(model);
  const std::vector<float> bias = contents_->bias_before_norm(model);
  load_parameters(contents_->files, contents_->path, model, [&](std::string_view name) {
    return name == head_name || name.ends_with("rotary_emb.inv_freq") ||  // a tied one; of older checkpoints
           (name == normed_bias && !bias.empty());
  });
  if (bias.empty()) return "";
  OnHost mean(model.compute(), parameter_of(model, normed_mean)->value);
  std::ranges::transform(mean.floats(), bias, mean.floats().begin(), std::minus());
  mean.put_back();
  return fmt::format("its {} is left out, and taken from {}: the norm takes it away", normed_bias, normed_mean);
}

void Pretrained::settings(ModelSettings& settings) const {
  const std::string kind = model();
  const SafetensorsFile& file = contents_->files.front();
  if (contents_->held_config) read_config(*contents_->held_config, file.path(), kind, settings);
  if (contents_->config) {
    const ModelSettings held = settings;
    read_config(read_text_file(*contents_->config), *contents_->config, kind, settings);
    if (contents_->held_config) check_same(*contents_->config, settings.llama, file.path(), held.llama);
  }
  const bool said = contents_->held_config || contents_->config;
  if (kind == "mlp" && !said) settings.sizes = mlp_sizes(file);
  if (kind == "cnn" && !said) settings.cnn = cnn_sizes(file, settings.cnn);
  if (kind != "llama") return;
  if (!said) settings.llama.tied_head = !contents_->has(head_name);
  contents_->check_shapes(settings.llama);
}

}  // namespace kolo::models

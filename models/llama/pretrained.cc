#include "models/llama/pretrained.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/json_file.h"
#include "models/util/error.h"
#include "models/util/words.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

/// What an index says: the names of tensors, by the files beside it. A name that leads elsewhere is refused.
std::map<std::string, std::vector<std::string>> tensors_by_file(const fs::path& index) {
  const nlohmann::json parsed = read_json_object(index);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object() || map->empty()) {
    refuse_file(index, "it has no 'weight_map'", give_checkpoint);
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) refuse_file(index, fmt::format("{} is in no file", in_quotes(tensor)), give_checkpoint);
    const auto name = file.get<std::string>();
    if (name.empty() || name != fs::path(name).filename().string() || name == "." || name == "..") {
      refuse_file(index, fmt::format("{} is not the name of a file beside it", in_quotes(name)), give_checkpoint);
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
      refuse_file(index, fmt::format("{} is not in {}, as it says", in_quotes(*lost), name), give_checkpoint);
    }
  }
  return files;
}

/// What the shapes tell of a Llama's sizes, beside what is asked for.
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

}  // namespace kolo::models

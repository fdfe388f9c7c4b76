#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// The folder that the other files of the model at `path` are in: `path` itself, or, of a file, the folder that it is
/// in if a config.json is beside it. Nothing: there is none.
std::optional<std::filesystem::path> model_folder(const std::filesystem::path& path);

/// Pretrained parameters of a public checkpoint: a folder with config.json and model.safetensors, or, where that
/// is not there, the files that model.safetensors.index.json lists; or one .safetensors file, with its sizes in its
/// metadata, or the config.json beside it if there is one. Values may be f32, bf16, f16 or f64. Of a Llama, the
/// frequencies of rotary positions that older checkpoints hold are left out, and so is a tied head that is stored
/// beside the embedding.
class Pretrained {
 public:
  /// Reads and checks headers, index and config. Errors: ModelError that names the file and the reason.
  explicit Pretrained(std::filesystem::path path);
  ~Pretrained();
  Pretrained(Pretrained&&) noexcept;
  Pretrained& operator=(Pretrained&&) noexcept;

  /// Whether model() and settings() can tell such a model: "mlp", "cnn", "llama".
  static bool knows(std::string_view kind);

  /// "mlp", "cnn" or "llama", by the names of its tensors. Errors: ModelError if they are none of these.
  std::string model() const;

  /// The kind of model that its config says kolo has written, which may be one of somebody's own; empty: it says none.
  std::string said_model() const;

  /// An extent of one of its tensors; 0 if there is none of that name, or it has fewer dimensions.
  std::int64_t extent(std::string_view tensor, std::size_t dimension) const;

  /// Sets the sizes in `settings`: those of config.json or the file's metadata; without either an mlp's and a cnn's
  /// come from the shapes, and a llama's stay as given. Errors: ModelError for a config that kolo does not support, for
  /// sizes that differ from the shapes, and for a config.json that differs from the metadata in what shapes do not
  /// tell.
  void settings(ModelSettings& settings) const;

  /// Reads every value of a bound model. Returns what a user should know of it, mostly nothing: that a CNN's bias in
  /// front of a norm, which older files hold, went into the norm's running mean. Errors: as load_parameters; a tied
  /// head that differs from the embedding.
  std::string load(Model& model) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// Of the metadata of a file that holds a whole model: the text of its config.json.
inline constexpr const char* config_key = "config.json";

}  // namespace kolo::models

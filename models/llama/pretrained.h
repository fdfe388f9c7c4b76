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

/// Pretrained parameters of a public checkpoint: a folder with config.json and model.safetensors, or the files that
/// model.safetensors.index.json lists; or one .safetensors file, with the config.json beside it if there is one. Values
/// may be f32, bf16, f16 or f64.
class Pretrained {
 public:
  /// Reads and checks headers, index and config. Errors: ModelError that names the file and the reason.
  explicit Pretrained(std::filesystem::path path);
  ~Pretrained();
  Pretrained(Pretrained&&) noexcept;
  Pretrained& operator=(Pretrained&&) noexcept;

  /// "mlp", "cnn" or "llama", by the names of its tensors. Errors: ModelError if they are none of these.
  std::string model() const;

  /// An extent of one of its tensors; 0 if there is none of that name, or it has fewer dimensions.
  std::int64_t extent(std::string_view tensor, std::size_t dimension) const;

  /// Sets the sizes in `settings`: a llama's from config.json, those of an mlp and a cnn from the shapes. Without a
  /// config.json a llama's stay as given. Errors: ModelError for a config that kolo does not support, and for sizes
  /// that differ from the shapes.
  void settings(ModelSettings& settings) const;

  /// Reads every value of a bound model. Errors: as load_parameters.
  void load(const Model& model) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// The sizes of a Llama's config.json. Missing ones stay as given, or have the format's default (kv_heads = heads, an
/// untied head, a rope_theta of 10 000).
/// Errors: ModelError for a file that cannot be read, and for features that kolo does not support.
LlamaSettings llama_config(const std::filesystem::path& path, LlamaSettings settings);

}  // namespace kolo::models

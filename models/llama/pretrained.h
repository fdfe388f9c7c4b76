#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// Pretrained parameters, stored like public checkpoints: of a folder, config.json and the files that
/// model.safetensors.index.json lists, else model.safetensors, and nothing else; or one .safetensors file, with the
/// config.json beside it if there is one. Values may be f32, bf16, f16 or f64.
class Pretrained {
 public:
  /// Reads and checks headers, index and config. Errors: ModelError that names the file and the reason.
  explicit Pretrained(std::filesystem::path path);
  ~Pretrained();
  Pretrained(Pretrained&&) noexcept;
  Pretrained& operator=(Pretrained&&) noexcept;

  /// "mlp", "cnn" or "llama", by the names of its tensors. Errors: ModelError if they are none of these.
  std::string model() const;

  /// Puts the sizes that this dictates in their places: a llama's from config.json (without one they stay as they are),
  /// those of an mlp and a cnn from the shapes. Errors: ModelError for a config that kolo cannot follow, and
  /// for sizes that are not those of the shapes, if there is no config.
  void settings(ModelSettings& settings) const;

  /// Reads every value of a bound model. Errors: as load_parameters.
  void load(const Model& model) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// The sizes of a Llama's config.json; what it does not say stays as given, but for what has a default there (as many
/// key and value heads as heads, a head of its own, a rope_theta of 10 000).
/// Errors: ModelError for a file that cannot be read, and for one that asks for what kolo's Llama does not do.
LlamaSettings llama_config(const std::filesystem::path& path, LlamaSettings settings);

}  // namespace kolo::models

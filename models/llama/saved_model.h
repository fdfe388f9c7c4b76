#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <kolo/dtype.h>

#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// A trained model that other programs read: one file, or a folder, by the name of its path.
///
/// NAME.safetensors is a file of all parameters, whose metadata has the text of a config.json. Any other name is a
/// folder as public checkpoints are stored: config.json, model.safetensors or shards with an index, and what else
/// belongs to a model (a llama's generation_config.json, a tokenizer). A folder becomes visible whole, as a file does:
/// what had the name before is there until then.
struct SavedModel {
  std::string model;                                ///< "mlp", "cnn" or "llama"
  ModelSettings settings;                           ///< with all sizes
  DType stored = DType::f32;                        ///< or bf16
  std::uint64_t shard_bytes = 5'000'000'000;        ///< of a folder: the most that one file of parameters takes
  std::map<std::string, std::string> companions{};  ///< of a folder: texts of other files, by name; see companions_of()

  /// Writes the values of a bound model. Errors: ModelError as check_savable, and if the disk is full; then `path` is
  /// as it was.
  void write(const std::filesystem::path& path, Model& values) const;
};

/// Whether `path` is to be a file rather than a folder.
bool is_saved_as_file(const std::filesystem::path& path);

/// Finds out at once whether a model could be saved as `path` (not whether the disk has room). Errors: ModelError if
/// its folder cannot be written to, or if it exists and is neither a saved model nor empty.
void check_savable(const std::filesystem::path& path);

/// The files of a public checkpoint's folder that belong to a model whatever its parameters are: its config.json, its
/// tokenizer, how to generate text. `path` may be that of a file in it, see model_folder(). Errors: ModelError for one
/// that cannot be read.
std::map<std::string, std::string> companions_of(const std::filesystem::path& path);

/// Puts another tokenizer in place of that among `companions`: the tokenizer.json at `file`, and if that is its name,
/// what lies beside it and belongs to it (its config, special tokens, template of chats). Empty: none. Unless it says
/// the same, the ids in configs become its own (put_token_ids). Errors: ModelError for a file that cannot be read.
void replace_tokenizer(std::map<std::string, std::string>& companions, const std::filesystem::path& file);

}  // namespace kolo::models

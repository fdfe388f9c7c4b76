#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kolo::models {

/// The files of a checkpoint, all of which its manifest lists.
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* state_file = "state.json";

/// Writes manifest.json for the other files of a checkpoint's folder, which are on disk. Errors: ModelError.
void write_manifest(const std::filesystem::path& folder, std::int64_t step);

/// The content of state.json. Errors: ModelError.
std::string read_state(const std::filesystem::path& folder);

}  // namespace kolo::models

#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kolo::models {

/// What to do about a checkpoint's file that is not as it should be.
inline constexpr std::string_view give_checkpoint = "give a checkpoint as tools store it, whole";

/// Throws ModelError: *cannot use FILE (reason); advice*.
[[noreturn]] void refuse_file(const std::filesystem::path& path, std::string_view reason,
                              std::string_view advice = give_checkpoint);

/// Reads a JSON object. Errors: ModelError that names the file and the reason.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace kolo::models

#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace kolo::models {

/// Throws ModelError: *cannot use FILE (reason); advice*.
[[noreturn]] void refuse_file(const std::filesystem::path& path, std::string_view reason,
                              std::string_view advice = "give a checkpoint as tools store it, whole");

/// Parses a JSON object; keys keep their order. Errors: ModelError that names `path`, where the text is from: no
/// object, or one that is nested deeper than 64.
nlohmann::ordered_json parse_json_object(std::string_view text, const std::filesystem::path& path);

/// The text of a file beside a model. Errors: ModelError for a file that cannot be read, or has more than 100 MB.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace kolo::models

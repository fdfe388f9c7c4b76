#include "models/llama/json_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "models/util/error.h"

namespace kolo::models {

namespace fs = std::filesystem;

void refuse_file(const fs::path& path, std::string_view reason, std::string_view advice) {
  throw ModelError(fmt::format("cannot use {} ({}); {}", path.string(), reason, advice));
}

nlohmann::ordered_json parse_json_object(std::string_view text, const fs::path& path) {
  constexpr int depth_limit = 64;
  bool too_deep = false;
  auto parsed = nlohmann::ordered_json::parse(
      text,
      [&](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
        too_deep = too_deep || depth > depth_limit;
        return !too_deep;
      },
      false);
  if (too_deep || parsed.is_discarded() || !parsed.is_object()) refuse_file(path, "it holds no JSON object");
  return parsed;
}

std::string read_text_file(const fs::path& path) {
  constexpr std::uintmax_t longest = 100'000'000;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) refuse_file(path, error.message());
  if (bytes > longest) refuse_file(path, fmt::format("{} bytes are too many for it", bytes));
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse_file(path, std::generic_category().message(errno));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kolo::models

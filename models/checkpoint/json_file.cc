#include "models/checkpoint/json_file.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <string>

#include "models/util/error.h"

namespace kolo::models {

void refuse_file(const std::filesystem::path& path, std::string_view reason, std::string_view advice) {
  throw ModelError(fmt::format("cannot use {} ({}); {}", path.string(), reason, advice));
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  constexpr std::uintmax_t longest = 100'000'000;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) refuse_file(path, error.message());
  if (bytes > longest) refuse_file(path, fmt::format("{} bytes are too many for it", bytes));
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const int depth_limit = 64;
  bool too_deep = false;
  auto parsed = nlohmann::json::parse(
      text,
      [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        too_deep = too_deep || depth > depth_limit;
        return !too_deep;
      },
      false);
  if (too_deep || parsed.is_discarded() || !parsed.is_object()) refuse_file(path, "it holds no JSON object");
  return parsed;
}

}  // namespace kolo::models

#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace kolo::detail {

/// Where the user's programs keep what can be made again: $XDG_CACHE_HOME/kolo or ~/.cache/kolo (XDG Base Directory
/// Specification 0.8); empty if the environment names neither. It may not exist yet.
inline std::string cache_folder() {
  const auto value = [](const char* variable) {
    const char* const set = std::getenv(variable);
    return std::string_view(set != nullptr && *set == '/' ? set : "");
  };
  if (const auto cache = value("XDG_CACHE_HOME"); !cache.empty()) return std::string(cache) + "/kolo";
  const auto home = value("HOME");
  return home.empty() ? "" : std::string(home) + "/.cache/kolo";
}

}  // namespace kolo::detail

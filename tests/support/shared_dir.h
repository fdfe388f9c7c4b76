#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kolo::testing {

/// Reference numbers and data that are not part of the repository: KOLO_SHARED_DIR, or ../shared beside the checkout.
/// Empty if neither exists: tests that need it call GTEST_SKIP().
inline std::filesystem::path shared_dir() {
  namespace fs = std::filesystem;
  if (const char* set = std::getenv("KOLO_SHARED_DIR")) return fs::is_directory(set) ? fs::path(set) : fs::path();
  const fs::path beside = fs::path(KOLO_SOURCE_DIR) / ".." / "shared";
  return fs::is_directory(beside) ? fs::canonical(beside) : fs::path();
}

}  // namespace kolo::testing

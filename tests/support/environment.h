#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

// What a test asks of its surroundings: the build, the environment, the machine.

namespace kolo {

/// Whether this is a build with sanitizers, where everything takes many times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

/// For as long as it lives this process cannot open files.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// For as long as it lives this process cannot start threads: there is no room for so large a stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

namespace testing {

/// A fresh folder that is gone with this.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kolo-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Seeds of a random test: 1…count, or only KOLO_TEST_SEED if that is set, to replay a failure. KOLO_TEST_SCALE
/// multiplies the count, for longer runs, and KOLO_TEST_FIRST_SEED begins at another one; under sanitizers, where
/// programs are five times as slow, there are fewer.
inline std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("KOLO_TEST_SEED")) return {std::strtoull(one, nullptr, 10)};
  double scale = sanitized ? 0.2 : 1;
  if (const char* more = std::getenv("KOLO_TEST_SCALE")) scale *= std::strtod(more, nullptr);
  count = static_cast<std::uint64_t>(scale * static_cast<double>(count));
  std::vector<std::uint64_t> result;
  const char* const first = std::getenv("KOLO_TEST_FIRST_SEED");
  const std::uint64_t before = first ? std::strtoull(first, nullptr, 10) - 1 : 0;
  for (std::uint64_t seed = 1; seed <= count; ++seed) result.push_back(before + seed);
  return result;
}

/// Reference numbers and data that are not part of the repository: KOLO_SHARED_DIR, or ../shared beside the checkout.
/// Empty if neither exists: tests that need it call GTEST_SKIP().
inline std::filesystem::path shared_dir() {
  namespace fs = std::filesystem;
  if (const char* set = std::getenv("KOLO_SHARED_DIR")) return fs::is_directory(set) ? fs::path(set) : fs::path();
  const fs::path beside = fs::path(KOLO_SOURCE_DIR) / ".." / "shared";
  return fs::is_directory(beside) ? fs::canonical(beside) : fs::path();
}

}  // namespace testing
}  // namespace kolo

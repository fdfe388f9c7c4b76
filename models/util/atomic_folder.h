#pragma once

#include <filesystem>
#include <utility>

namespace kolo::models {

/// A folder that is filled under a temporary name and renamed to `target` once it is complete: `target` is always the
/// old folder or the whole new one. Errors: ModelError naming the target and the reason.
class AtomicFolder {
 public:
  /// temporary  on the file system of `target`; what an interrupted writer left there is removed
  AtomicFolder(std::filesystem::path temporary, std::filesystem::path target);
  /// One whose folder others have filled already.
  static AtomicFolder of_filled(std::filesystem::path temporary, std::filesystem::path target) {
    return {std::move(temporary), std::move(target), Filled{}};
  }
  /// Removes the folder unless it was committed.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to write files, each synced by its writer.
  const std::filesystem::path& path() const { return temporary_; }

  /// Gives it its name. A folder that has this name already is removed afterwards.
  void commit();

 private:
  struct Filled {};
  AtomicFolder(std::filesystem::path temporary, std::filesystem::path target, Filled)
      : temporary_(std::move(temporary)), target_(std::move(target)) {}

  std::filesystem::path temporary_, target_;
};

}  // namespace kolo::models

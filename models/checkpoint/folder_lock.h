#pragma once

#include <filesystem>

namespace kolo::models {

/// An exclusive advisory lock on a folder; the system releases it when the process ends.
class FolderLock {
 public:
  /// folder  made if it is not there
  /// Waits some seconds for another holder to end: a run whose launcher was killed takes a moment to notice.
  /// Errors: ModelError if it stays, or the folder cannot be written to.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace kolo::models

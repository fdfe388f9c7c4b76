#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "models/util/error.h"
#include "models/util/file_descriptor.h"

namespace kolo::models {

/// What cannot be written, such as where a disk is full.
class Unwritable : public ModelError {
 public:
  Unwritable(std::string problem, std::string_view advice);
  /// "cannot write PATH (REASON)"
  const std::string& problem() const { return problem_; }

 private:
  std::string problem_;
};

/// A file that is written under a temporary name and renamed to `target` once it is complete and on disk: `target` is
/// always the old file or the whole new one. Errors: Unwritable, naming the target and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& target);
  /// Removes the file unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Replaces bytes that were written, from the file's beginning on.
  void rewrite_beginning(std::string_view bytes);
  void commit();

 private:
  std::filesystem::path target_, path_;
  FileDescriptor file_;
  bool committed_ = false;
};

/// Writes a file with this text through an AtomicFile.
void write_atomic_file(const std::filesystem::path& target, std::string_view text);

/// Syncs the names in a folder to disk. Has no effect on file systems that cannot sync a folder.
void sync_folder(const std::filesystem::path& folder);

/// Throws Unwritable: "cannot write PATH (REASON); …"
[[noreturn]] void refuse_to_write(const std::filesystem::path& path, std::string_view reason);

}  // namespace kolo::models

#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace kolo::models {

/// A file that is written beside its place and takes it when it is complete and on disk: whatever happens, `target` is
/// either what it was or the whole new file. Errors: ModelError naming the target and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& target);
  /// Gone again unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  std::filesystem::path target_, path_;
  int fd_ = -1;
  bool committed_ = false;
};

/// A whole file of this text, by way of a AtomicFile.
void write_new_file(const std::filesystem::path& target, std::string_view text);

/// What is in a folder, by name, lasts from now on. Some file systems cannot do that for a folder: its files are safe
/// there.
void sync_folder(const std::filesystem::path& folder);

/// "cannot write PATH (REASON); …"
[[noreturn]] void refuse_to_write(const std::filesystem::path& path, std::string_view reason);

}  // namespace kolo::models

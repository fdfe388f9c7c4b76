#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "models/util/file_descriptor.h"

namespace kolo::models {

/// A regular file, read at any place. Read and not mapped: a mapped file that another process cuts short ends this one
/// with SIGBUS. Thread-safe.
///
/// Errors: ModelError, "cannot use PATH (reason); ADVICE".
class InputFile {
 public:
  /// advice   for errors; a literal
  /// stays_open  false: each read opens it again, for thousands of files
  /// Errors: missing, unreadable, no regular file, empty.
  InputFile(std::filesystem::path path, std::string_view advice, bool stays_open = true);

  const std::filesystem::path& path() const { return path_; }
  /// Its size when it was opened.
  std::uint64_t bytes() const { return bytes_; }

  /// Fills `to` with the bytes from `first` on. Errors: as many are not there any more.
  void read(std::uint64_t first, std::span<std::byte> to) const;

  /// All of it. Errors: more than a gibibyte; std::bad_alloc.
  std::string text() const;

  [[noreturn]] void refuse(std::string_view reason) const;

 private:
  FileDescriptor open() const;

  std::filesystem::path path_;
  std::string_view advice_;
  FileDescriptor file_;  // unless it is opened for each read
  std::uint64_t bytes_ = 0;
};

}  // namespace kolo::models

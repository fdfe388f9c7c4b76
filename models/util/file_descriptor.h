#pragma once

#include <unistd.h>

#include <kolo/detail/unique.h>

namespace kolo::models {

struct FileTraits {
  using Raw = int;
  static Raw null() noexcept { return -1; }
  static void destroy(Raw file) noexcept { (void)::close(file); }
};
/// Owns an open file. As ops/host/file_descriptor.h, which models do not see.
using FileDescriptor = Unique<FileTraits>;

}  // namespace kolo::models

#pragma once

#include <unistd.h>

#include <kolo/detail/unique.h>

namespace kolo {

struct FileTraits {
  using Raw = int;
  static Raw null() noexcept { return -1; }
  static void destroy(Raw file) noexcept { (void)::close(file); }
};
/// Owns a file, a socket or another descriptor.
using FileDescriptor = Unique<FileTraits>;

}  // namespace kolo

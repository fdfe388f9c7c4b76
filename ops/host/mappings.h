#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kolo {

/// A part of this process's address space of one kind, as the kernel describes it (proc(5), smaps).
struct Mapping {
  std::uintptr_t begin = 0, end = 0;
  std::string permissions;  ///< "rw-p"
  std::uint64_t inode = 0;  ///< of its file; 0: none
  std::string flags;        ///< "rd wr mr mw me ac"; empty if they were not asked for
};

/// Those that have bytes of a range, in order. `flags`: asks for them, which takes the kernel longer.
std::vector<Mapping> mappings_of(const void* data, std::size_t bytes, bool flags);

}  // namespace kolo

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

/// What becomes of pages of the program that peers are to reach.
enum class Adopted { replaced, kept };

/// Throws Error{invalid_argument} unless all of the pages can be that: ordinary memory can, and what is kept may also
/// be shared, locked, a mapped file, or of huge pages of a reserve.
void check_adoptable(const std::byte* begin, std::size_t bytes, Adopted adopted);

}  // namespace kolo

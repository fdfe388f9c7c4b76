#include "ops/host/process_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace kolo {

bool read_process(int pid, std::uint64_t address, std::span<std::byte> to) noexcept {
  const iovec mine{to.data(), to.size()};
  const iovec theirs{reinterpret_cast<void*>(address), to.size()};
  return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == static_cast<ssize_t>(to.size());
}

bool is_readable(std::span<const std::span<const std::byte>> ranges) noexcept {
  constexpr std::size_t at_once = 256;
  std::array<iovec, at_once> theirs;
  std::array<std::byte, at_once> ends;
  while (!ranges.empty()) {
    const auto some = ranges.first(std::min(ranges.size(), at_once / 2));
    ranges = ranges.subspan(some.size());
    std::size_t count = 0;
    for (const auto& range : some) {
      if (range.empty()) continue;
      for (const std::byte* end : {&range.front(), &range.back()}) theirs[count++] = {const_cast<std::byte*>(end), 1};
    }
    const iovec mine{ends.data(), count};
    if (count > 0 && process_vm_readv(getpid(), &mine, 1, theirs.data(), count, 0) != static_cast<ssize_t>(count))
      return false;
  }
  return true;
}

}  // namespace kolo

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kolo {

/// Copies `to.size()` bytes out of process `pid` of this machine, from `address` on, without its help
/// (process_vm_readv). Returns whether all have been copied: not if the system does not permit it, the process is gone,
/// or it has no such memory, or none that can be read that way (of a device).
bool read_process(int pid, std::uint64_t address, std::span<std::byte> to) noexcept;

/// Whether other processes that may read this one could read its memory there: looks at the first byte and the last of
/// each range.
bool is_readable(std::span<const std::span<const std::byte>> ranges) noexcept;

}  // namespace kolo

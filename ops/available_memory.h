#pragma once

#include <cstddef>
#include <string>

namespace kolo {

/// Bytes that this process could still take without driving the machine, or the control group it runs in, out of memory, as
/// far as the kernel tells: the largest number if it does not. Files under `root` stand for those under / in tests.
std::size_t available_memory(const std::string& root = "");

}  // namespace kolo

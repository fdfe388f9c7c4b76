#pragma once

#include <memory>
#include <vector>

#include <kolo/backend.h>
#include <kolo/memory.h>

namespace kolo {

/// Of a world's backends, the preferred ones first.
using MemorySources = std::vector<std::shared_ptr<MemorySource>>;

MemorySources memory_sources(const BackendList& backends);

/// Zeros from the first source that has what is asked for, or ordinary memory of the device. Throws as
/// Session::allocate().
Memory allocate_memory(const MemorySources& sources, std::size_t bytes, Device device);

}  // namespace kolo

#pragma once

#include <string>

namespace kolo {

/// What measurements on this machine hold for: processor, cores that share a cache, who may read whose memory. One
/// line. `root`: of the file system to read it from, for tests.
std::string machine_name(const std::string& root = "");

}  // namespace kolo

#pragma once

#include <string>

namespace kolo::bench {

/// Makes sure that a file can come to stand there. Errors: UsageError that names the flag.
void check_writable(const std::string& flag, const std::string& path);

/// Writes a file under another name and then renames it: what stood there before stays whole until it is replaced. Errors:
/// UsageError.
void write_whole(const std::string& path, const std::string& text);

}  // namespace kolo::bench

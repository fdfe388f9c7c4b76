#pragma once

#include <string>

namespace kolo::bench {

/// Makes sure that a file can come to stand there. Errors: UsageError that names the flag.
void check_writable(const std::string& flag, const std::string& path);

/// Whether two paths name one file, which need not be there yet.
bool same_file(const std::string& one, const std::string& other);

/// Writes a file under another name and then renames it: what stood there before stays whole until it is replaced. A
/// link's target is replaced, not the link; what is no file (a device, a pipe) is written to. Errors: UsageError.
void write_whole(const std::string& path, const std::string& text);

}  // namespace kolo::bench

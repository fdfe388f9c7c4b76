#pragma once

#include <string>

namespace kolo::train {

/// Whether two paths lead to one file, or would if it were there: also by way of links, and of folders written
/// differently.
bool same_file(const std::string& one, const std::string& other);

/// Whether `file` is there and lies, links followed, in `folder`; not in a folder within.
bool is_file_in(const std::string& file, const std::string& folder);

/// What a configuration file holds. Errors: UsageError if it is no regular file, has more than a mebibyte, or is no
/// text.
std::string read_config_text(const std::string& path);

}  // namespace kolo::train

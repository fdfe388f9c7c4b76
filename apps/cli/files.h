#pragma once

#include <string>

namespace kolo::cli {

/// Whether two paths name one file, which need not exist yet: links and different spellings of folders are followed.
bool same_file(const std::string& one, const std::string& other);

/// Whether `file` exists and lies, links followed, directly in `folder`.
bool is_file_in(const std::string& file, const std::string& folder);

/// Whether `path`, which need not exist yet, lies, links followed, in `folder` or a folder in it.
bool is_below(const std::string& path, const std::string& folder);

/// The text of a configuration file. Errors: UsageError if it is not a regular file, has more than a mebibyte, or is no
/// text.
std::string read_config_text(const std::string& path);

/// Makes sure that a file can be created at `path`. Errors: UsageError that names the flag.
void check_writable(const std::string& flag, const std::string& path);

/// Replaces a file atomically (models/util/atomic_file.h), or the target of a link. Devices and pipes are written to.
/// Errors: models::ModelError, UsageError.
void write_whole(const std::string& path, const std::string& text);

}  // namespace kolo::cli

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kolo::bench {

/// The gradients of a model: element counts in the order in which backprop produces them.
struct BucketList {
  std::string name;
  std::vector<std::int64_t> elements;
  std::int64_t total() const;
};

/// The list of that name, or else the one in that file: one element count a line; empty lines and lines that
/// begin with # are skipped. Errors: UsageError that names the file and the line.
BucketList bucket_list(const std::string& name_or_file);

}  // namespace kolo::bench

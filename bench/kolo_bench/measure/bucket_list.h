#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kolo::bench {

/// The gradients of a model: element counts in the order in which backprop produces them.
struct BucketList {
  std::string name;
  std::vector<std::int64_t> elements;
  std::int64_t total() const;
};

/// A list that is compiled in.
struct NamedList {
  std::string_view name;
  std::span<const std::int32_t> elements;
};
std::span<const NamedList> named_lists();

/// The list of that name, or else the one in that file: one element count a line; lines that are empty or begin with #
/// do not count. Errors: UsageError that names the file and the line.
BucketList bucket_list(const std::string& name_or_file);

}  // namespace kolo::bench

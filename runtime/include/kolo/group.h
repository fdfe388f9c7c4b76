#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kolo {

using GroupId = std::uint32_t;

/// Who belongs to a group, equal on every member but for `rank`.
struct GroupInfo {
  GroupId id = 0;
  std::string name;        ///< "world", for messages
  std::vector<int> ranks;  ///< session ranks of the members, in the order of their ranks in the group
  int rank = 0;            ///< index of this rank in `ranks`; -1 if it is no member

  bool pair = false;  ///< of send() and recv(): two ranks in ascending order, each of which makes it by itself

  bool member() const { return rank >= 0; }
  int size() const { return static_cast<int>(ranks.size()); }
};

/// A set of ranks that run collectives together. A value; the default is the session's world.
class Group {
 public:
  Group() = default;
  explicit Group(std::shared_ptr<const GroupInfo> info) : info_(std::move(info)) {}

  /// Null for the default, which stands for the world of the session it is used with.
  const GroupInfo* info() const { return info_.get(); }
  const std::shared_ptr<const GroupInfo>& shared_info() const { return info_; }

 private:
  std::shared_ptr<const GroupInfo> info_;
};

}  // namespace kolo

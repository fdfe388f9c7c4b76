#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kolo/detail/hash.h>
#include <kolo/session.h>

namespace kolo {

/// The names that a session has numbers for. Thread-safe.
class NameTable {
 public:
  TensorId declare(std::string_view name) {
    const std::lock_guard lock(mutex_);
    if (const auto found = ids_.find(name); found != ids_.end()) return {found->second};
    const auto index = static_cast<std::uint32_t>(names_.size());
    names_.emplace_back(name);
    ids_.emplace(name, index);
    return {index};
  }

  /// The name of an id; throws Error{invalid_argument} if declare() did not return it.
  std::string name(TensorId id) const {
    const std::lock_guard lock(mutex_);
    if (id.index >= names_.size()) {
      throw Error(ErrorCode::invalid_argument, "a TensorId was used that the session's declare() did not return");
    }
    return names_[id.index];
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t, detail::StringHash, std::equal_to<>> ids_;
};

}  // namespace kolo

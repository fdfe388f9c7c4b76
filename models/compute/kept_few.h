#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace kolo::models {

/// Values by key, made when they are first needed. Of more than `most` the least recently used one is forgotten.
template <class Key, class Value>
class KeptFew {
 public:
  explicit KeptFew(std::size_t most) : most_(most) {}

  /// The value of `key`, made by `make` if it is not here. Valid until the next call.
  template <class Make>
  Value& at(const Key& key, Make make) {
    auto found = values_.find(key);
    if (found == values_.end()) {
      if (values_.size() >= most_) forget_oldest();
      found = values_.try_emplace(key, Used{make(), 0}).first;
    }
    found->second.at = ++now_;
    return found->second.value;
  }

  std::size_t size() const { return values_.size(); }

 private:
  struct Used {
    Value value;
    std::uint64_t at;
  };

  void forget_oldest() {
    auto oldest = values_.begin();
    for (auto entry = values_.begin(); entry != values_.end(); ++entry) {
      if (entry->second.at < oldest->second.at) oldest = entry;
    }
    values_.erase(oldest);
  }

  std::size_t most_;
  std::uint64_t now_ = 0;
  std::map<Key, Used> values_;
};

}  // namespace kolo::models

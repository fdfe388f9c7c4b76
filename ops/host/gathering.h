#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/region.h"

namespace kolo {

/// How the ranks of a world that is being made tell each other what they must know, before they have a channel. Every
/// call is collective over them. Throws Error{backend}.
class Gathering {
 public:
  virtual ~Gathering() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The bytes of each rank.
  virtual std::vector<std::vector<std::byte>> all(std::span<const std::byte> mine) = 0;

  /// The lowest rank on this one's node.
  virtual int lowest_on_node() = 0;

  /// The value of each rank.
  template <class T>
  requires(std::is_trivially_copyable_v<T>) std::vector<T> all_values(const T& mine) {
    std::vector<T> values;
    for (const auto& bytes : all(std::as_bytes(std::span(&mine, 1))))
      std::memcpy(&values.emplace_back(), bytes.data(), sizeof(T));
    return values;
  }
};

/// The introductions of all ranks.
std::vector<Introduction> all_introductions(Gathering& ranks, const Introduction& mine);

/// Every rank's backend, of a group of all, is introduced to the others. Returns whether it serves all. Of those that
/// cannot take part the lowest reports why.
bool introduce_all(Gathering& ranks, Backend& backend, const std::function<void(const std::string& why)>& report);

/// A region that the ranks in `sharing` have mapped, this one among them, which are on one node: the first makes it,
/// the others open it; a rank alone uses its heap. Collective over all of `ranks`. Null, on all of them, if that fails
/// on any.
std::shared_ptr<Region> shared_region(Gathering& ranks, std::span<const int> sharing, std::size_t bytes,
                                      Reserved when = Reserved::now);

}  // namespace kolo

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <kolo/op.h>

#include "runtime/negotiation/messages.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// What one rank has begun in a group whose operations are matched by their order. Pure state.
class Sequence {
 public:
  /// So many of the last operations are remembered: more than a rank can be ahead of another one.
  static constexpr std::uint64_t remembered = 64;

  /// The rank begins its next operation. Returns what says so to the others: not 0, and equal on all ranks for the same
  /// number and signature only, but for one case in 2^64.
  std::uint64_t begin(const Signature& signature);

  /// How many it has begun.
  std::uint64_t begun() const { return begun_; }
  /// "#4 all_reduce(sum) f32[5]"; what was not begun, or is not remembered, has an empty text.
  std::string text(std::uint64_t number) const;
  /// What it has begun from `number` on.
  Described since(std::uint64_t number, int rank) const;

 private:
  struct One {
    Signature signature;
    std::uint64_t token = 0;
  };

  std::uint64_t begun_ = 0;
  std::vector<One> last_;  // at number % remembered
};

/// At the root of such a group's tree: finds the first operation in which ranks differ. Pure state.
class Disorder {
 public:
  /// What a rank has begun. Returns how the group fails, once two ranks are known to differ.
  std::optional<Failure> add(const Described& described, const std::string& group);

 private:
  struct Side {
    RankSet ranks;
    std::string text;
  };
  std::map<std::uint64_t, std::map<std::uint64_t, Side>> sides_;  // by number, then by token
};

}  // namespace kolo

#pragma once

#include <cstdint>

namespace kolo {

/// What the operations of one backend may move before it is the turn of other groups: they share it, in rounds. A round
/// begins when an operation is stepped that had its turn in this one.
class StepBudget final {
 public:
  /// In bytes, and in pieces of work however small.
  explicit StepBudget(std::int64_t bytes = 256 << 10, std::int64_t pieces = 64) : bytes_(bytes), pieces_(pieces) {}

  /// `round`: of the operation that is stepped; 0 at first.
  void begin(std::uint64_t& round) {
    if (round == round_) {
      ++round_;
      bytes_left_ = bytes_;
      pieces_left_ = pieces_;
    }
    round = round_;
  }
  void spend(std::int64_t bytes) {
    bytes_left_ -= bytes;
    --pieces_left_;
  }
  /// Then there may be more to do, in the next round: Operation::moved() must say so.
  bool spent() const { return bytes_left_ <= 0 || pieces_left_ <= 0; }

 private:
  std::int64_t bytes_, pieces_;
  std::uint64_t round_ = 0;
  std::int64_t bytes_left_ = 0, pieces_left_ = 0;
};

}  // namespace kolo

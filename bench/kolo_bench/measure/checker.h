#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/kolo_bench/measure/collective.h"
#include "bench/kolo_bench/measure/values.h"

namespace kolo::bench {

/// A wrong element; its bytes in hexadecimal, most significant first.
struct WrongElement {
  int lane = 0;
  std::int64_t index = 0;
  bool of_input = false;  ///< an input that an out-of-place operation has changed
  std::string want, got;
};

/// "element 7 is 0x3f800000 instead of 0x40000000".
std::string to_string(const WrongElement& element);

/// The expected result of some work, to the last bit (or, if asked for, nearly): every rank computes it alone from all
/// ranks' inputs, in rank order.
class Checker {
 public:
  /// `rounds`: reductions of floats may differ from rank order's by the rounding of each step on `exact` values.
  Checker(const Signature& signature, int rank, int ranks, ValueKind kind, std::uint64_t seed, bool rounds = false);

  /// Writes this rank's inputs, and poisons the outputs.
  void fill(const Work& work) const;

  /// The number of wrong elements in the outputs (and in out-of-place inputs), and the first of them.
  std::int64_t wrong(const Work& work, std::optional<WrongElement>* first = nullptr) const;

 private:
  /// Writes the expected elements [first, first + count) of this rank's output.
  void write_expected(const Values& values, const Work& work, std::int64_t first, std::int64_t count,
                      std::byte* to) const;
  Values values_of(int lane) const;
  bool has_result() const;

  Signature signature_;
  int rank_;
  int ranks_;
  ValueKind kind_;
  std::uint64_t seed_;
  double tolerance_ = 0;  // of an element of a reduction
};

}  // namespace kolo::bench

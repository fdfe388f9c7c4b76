#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/kolo_bench/measure/values.h"
#include "bench/kolo_bench/measure/work.h"

namespace kolo::bench {

/// An element that is not what it must be; the bytes are in hexadecimal, as a number is written.
struct WrongElement {
  int lane = 0;
  std::int64_t index = 0;
  bool of_input = false;  ///< an input that an operation out of place has changed
  std::string want, got;
};

/// "element 7 is 0x3f800000 instead of 0x40000000".
std::string to_string(const WrongElement& element);

/// What the result of some work must be, to the last bit (or, if asked for, nearly): every rank computes it by itself,
/// from the values that all ranks have, in rank order. Needs no other rank.
class Checker {
 public:
  /// `rounds`: reductions of floats may be as far from rank order's as rounding at each of their steps, of `exact`
  /// values, can take them.
  Checker(const Signature& signature, int rank, int ranks, ValueKind kind, std::uint64_t seed, bool rounds = false);

  /// Writes this rank's inputs, and nonsense where results will be.
  void fill(const Work& work) const;

  /// How many elements of the outputs (and of inputs, out of place) are wrong, and the first of them.
  std::int64_t wrong(const Work& work, std::optional<WrongElement>* first = nullptr) const;

 private:
  /// Writes what elements [first, first + count) of this rank's output must be.
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

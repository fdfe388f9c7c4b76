#pragma once

// Element kernels on vectors, for source files that are compiled for one kind of processor each. Such a file includes
// this last, after it has set the target and defined, in namespace kolo::{anonymous}:
//
//     constexpr std::size_t vector_bytes                 of one register
//     Vector<float> widen_f16(HalfVector halves)         exact, as to_float()
//     HalfVector narrow_f16(Vector<float> values)        as to_float16()
//     void stream_vector(std::byte* to, Values values)   a template: stores a vector of any type, or half of one, at a
//     multiple of
//                                                        its size, past the cache if the processor can
//
// Everything here has internal linkage:
// the same names mean other instructions in other files.
//
// A vector of totals starts as the elements of the first source; each further source is combined into it; then it is
// divided, scaled, rounded to the element type and stored. What does not fill a vector at the end of the range goes
// through the same code, padded. Every element's total stays in a register, and all sources of a vector are read before
// the outputs are written. More sources than a processor follows well are combined a few at a time, block by block: the
// totals of a block stay in the first-level cache (with 16 to 64 sources that is 1.5 to 4 times as fast).

#include <cstring>
#include <type_traits>

#include "ops/kernels/reduce_kernels.h"
#include "ops/kernels/reduce_vectors.h"

namespace kolo {
namespace {

/// How elements of one type are held in a vector: as themselves.
template <class T>
struct Lanes {
  using Element = T;
  using Number = T;
  static constexpr std::size_t count = vector_bytes / sizeof(T);
  static Vector<T> load(const void* elements) { return load_vector<Vector<T>>(elements); }
  static Vector<T> narrow(Vector<T> values) { return values; }
};

/// 16-bit floats: as f32.
template <class Half>
struct HalfLanes {
  using Element = std::uint16_t;
  using Number = float;
  static constexpr std::size_t count = vector_bytes / sizeof(float);
  static Vector<float> load(const void* elements) {
    const auto halves = load_vector<HalfVector>(elements);
    if constexpr (std::is_same_v<Half, Float16>)
      return widen_f16(halves);
    else
      return widen_bf16(halves);
  }
  static HalfVector narrow(Vector<float> values) {
    if constexpr (std::is_same_v<Half, Float16>)
      return narrow_f16(values);
    else
      return narrow_bf16(values);
  }
};

/// Truths: as 0 or 1.
template <class T>
struct TruthLanes : Lanes<T> {
  static Vector<T> load(const void* elements) {
    return load_vector<Vector<T>>(elements) != 0 ? Vector<T>{} + T{1} : Vector<T>{};
  }
};

// A comparison with a NaN is false: `b` is then taken, so only a NaN in `a` needs the second test.
template <ReduceOp op, class Values>
Values combine(Values a, Values b) {
  if constexpr (op == ReduceOp::min)
    return (a < b) | (a != a) ? a : b;  // NOLINT(misc-redundant-expression): a NaN is not itself
  else if constexpr (op == ReduceOp::max)
    return (a > b) | (a != a) ? a : b;  // NOLINT(misc-redundant-expression)
  else if constexpr (op == ReduceOp::product)
    return a * b;
  else if constexpr (op == ReduceOp::bit_and)
    return a & b;
  else if constexpr (op == ReduceOp::bit_or)
    return a | b;
  else if constexpr (op == ReduceOp::bit_xor)
    return a ^ b;
  else
    return a + b;
}

/// What floats are multiplied by and divided by, in their accumulator's type.
template <class Number>
struct Factors {
  explicit Factors(const Reduction& how)
      : prescale(static_cast<Number>(how.prescale)),
        postscale(static_cast<Number>(how.postscale)),
        scales(how.postscale != 1) {
    if (how.op != ReduceOp::average || how.divide_by == 1) return;
    const bool power_of_two =
        (how.divide_by & (how.divide_by - 1)) == 0;  // then multiplying gives the same bits, faster
    divides = !power_of_two;
    shares = power_of_two;
    divisor = static_cast<Number>(how.divide_by);
    share = Number{1} / divisor;
  }
  Number prescale, postscale, divisor = 1, share = 1;
  bool scales, divides = false, shares = false;
};

template <class L, ReduceOp op>
class LaneKernel {
 public:
  static void run(const Reduction& how, const void* const* sources, std::size_t ranks, std::size_t at,
                  const ReduceOutputs& outputs, std::size_t count) {
    const bool only_first = !outputs.second;
    if constexpr (std::is_floating_point_v<typename L::Number>) {
      if (how.prescale != 1) {
        return only_first ? run_as<true, true>(how, sources, ranks, at, outputs, count)
                          : run_as<true, false>(how, sources, ranks, at, outputs, count);
      }
    }
    only_first ? run_as<false, true>(how, sources, ranks, at, outputs, count)
               : run_as<false, false>(how, sources, ranks, at, outputs, count);
  }

 private:
  using Number = typename L::Number;
  using Values = Vector<Number>;
  static constexpr std::size_t size = sizeof(typename L::Element);
  static constexpr std::size_t sources_at_once = 8;
  static constexpr std::size_t block_vectors = 4096 / vector_bytes;
  static std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }

  template <bool prescaled, bool only_first>
  static void run_as(const Reduction& how, const void* const* sources, std::size_t ranks, std::size_t begin,
                     const ReduceOutputs& outputs, std::size_t count) {
    const Factors<Number> factors(how);
    const auto source = [&](std::size_t rank) { return static_cast<const std::byte*>(sources[rank]) + begin; };
    auto* const first = static_cast<std::byte*>(outputs.first);
    auto* const second = static_cast<std::byte*>(outputs.second);
    const bool streams_first = outputs.streams_first, streams_second = outputs.streams_second;
    const std::size_t whole = count / L::count * L::count;
    const auto load = [&](const std::byte* elements) { return prepare<prescaled>(factors, L::load(elements)); };
    const auto store = [&](std::size_t at, Values total) {
      const auto results = L::narrow(finish(factors, total));
      if (!only_first && streams_first)
        stream_vector(first + at, results);
      else if (only_first || first)
        std::memcpy(first + at, &results, sizeof(results));
      if (only_first) return;
      if (streams_second)
        stream_vector(second + at, results);
      else
        std::memcpy(second + at, &results, sizeof(results));
    };
    if (ranks == 2) {
      const std::byte* const a = source(0);
      const std::byte* const b = source(1);
      for (std::size_t at = 0; at < whole * size; at += L::count * size) {
        store(at, combine<op>(load(a + at), load(b + at)));
      }
    } else if (ranks <= sources_at_once) {
      for (std::size_t at = 0; at < whole * size; at += L::count * size) {
        Values total = load(source(0) + at);
        for (std::size_t rank = 1; rank < ranks; ++rank) total = combine<op>(total, load(source(rank) + at));
        store(at, total);
      }
    } else {
      Values totals[block_vectors];
      for (std::size_t block = 0; block < whole * size; block += block_vectors * L::count * size) {
        const std::size_t end = least(block + block_vectors * L::count * size, whole * size);
        for (std::size_t rank = 0; rank < ranks; rank += sources_at_once) {
          const std::size_t next = least(rank + sources_at_once, ranks);
          Values* kept = totals;
          for (std::size_t at = block; at < end; at += L::count * size, ++kept) {
            Values total = rank == 0 ? load(source(0) + at) : combine<op>(*kept, load(source(rank) + at));
            for (std::size_t other = rank + 1; other < next; ++other)
              total = combine<op>(total, load(source(other) + at));
            if (next < ranks)
              *kept = total;
            else
              store(at, total);
          }
        }
      }
    }
    if (count == whole) return;
    typename L::Element padded[L::count] = {};
    const auto load_rest = [&](std::size_t rank) {
      std::memcpy(padded, source(rank) + whole * size, (count - whole) * size);
      return load(reinterpret_cast<const std::byte*>(padded));
    };
    Values total = load_rest(0);
    for (std::size_t rank = 1; rank < ranks; ++rank) total = combine<op>(total, load_rest(rank));
    const auto results = L::narrow(finish(factors, total));
    for (std::byte* const out : {first, second}) {
      if (out) std::memcpy(out + whole * size, &results, (count - whole) * size);
    }
  }

  template <bool prescaled>
  static Values prepare(const Factors<Number>& factors, Values values) {
    if constexpr (prescaled)
      return values * factors.prescale;
    else
      return values;
  }

  static Values finish(const Factors<Number>& factors, Values total) {
    if constexpr (std::is_floating_point_v<Number>) {
      if (factors.divides) total /= factors.divisor;
      if (factors.shares) total *= factors.share;
      if (factors.scales) total *= factors.postscale;
    }
    return total;
  }
};

template <class L>
ReduceKernel arithmetic_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::average: return LaneKernel<L, ReduceOp::sum>::run;
    case ReduceOp::min: return LaneKernel<L, ReduceOp::min>::run;
    case ReduceOp::max: return LaneKernel<L, ReduceOp::max>::run;
    case ReduceOp::product: return LaneKernel<L, ReduceOp::product>::run;
    default: return nullptr;
  }
}

/// Sums, products and bits of signed and unsigned integers are the same.
template <class Signed, class Unsigned>
ReduceKernel integer_kernel(const Reduction& how, bool is_signed) {
  const bool exact = how.op == ReduceOp::average && how.divide_by != 1;
  if (exact || how.prescale != 1 || how.postscale != 1) return nullptr;
  switch (how.op) {
    case ReduceOp::min:
    case ReduceOp::max:
      return is_signed ? arithmetic_kernel<Lanes<Signed>>(how.op) : arithmetic_kernel<Lanes<Unsigned>>(how.op);
    case ReduceOp::bit_and: return LaneKernel<Lanes<Unsigned>, ReduceOp::bit_and>::run;
    case ReduceOp::bit_or: return LaneKernel<Lanes<Unsigned>, ReduceOp::bit_or>::run;
    case ReduceOp::bit_xor: return LaneKernel<Lanes<Unsigned>, ReduceOp::bit_xor>::run;
    case ReduceOp::logical_and: return LaneKernel<TruthLanes<Unsigned>, ReduceOp::bit_and>::run;
    case ReduceOp::logical_or: return LaneKernel<TruthLanes<Unsigned>, ReduceOp::bit_or>::run;
    default: return arithmetic_kernel<Lanes<Unsigned>>(how.op);
  }
}

inline ReduceKernel truth_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
    case ReduceOp::product:
    case ReduceOp::bit_and:
    case ReduceOp::logical_and: return LaneKernel<TruthLanes<std::uint8_t>, ReduceOp::bit_and>::run;
    case ReduceOp::max:
    case ReduceOp::bit_or:
    case ReduceOp::logical_or: return LaneKernel<TruthLanes<std::uint8_t>, ReduceOp::bit_or>::run;
    case ReduceOp::bit_xor: return LaneKernel<TruthLanes<std::uint8_t>, ReduceOp::bit_xor>::run;
    default: return nullptr;
  }
}

inline ReduceKernel find_kernel(const Reduction& how) {
  switch (how.dtype) {
    case DType::f64: return arithmetic_kernel<Lanes<double>>(how.op);
    case DType::f32: return arithmetic_kernel<Lanes<float>>(how.op);
    case DType::f16: return arithmetic_kernel<HalfLanes<Float16>>(how.op);
    case DType::bf16: return arithmetic_kernel<HalfLanes<BFloat16>>(how.op);
    case DType::i64:
    case DType::u64: return integer_kernel<std::int64_t, std::uint64_t>(how, how.dtype == DType::i64);
    case DType::i32:
    case DType::u32: return integer_kernel<std::int32_t, std::uint32_t>(how, how.dtype == DType::i32);
    case DType::i16:
    case DType::u16: return integer_kernel<std::int16_t, std::uint16_t>(how, how.dtype == DType::i16);
    case DType::i8:
    case DType::u8: return integer_kernel<std::int8_t, std::uint8_t>(how, how.dtype == DType::i8);
    case DType::boolean: return truth_kernel(how.op);
  }
  return nullptr;
}

}  // namespace
}  // namespace kolo

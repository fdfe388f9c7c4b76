#include "bench/kolo_bench/measure/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <kolo/float16.h>

#include "bench/kolo_bench/measure/reference.h"

namespace kolo::bench {
namespace {

constexpr std::int64_t chunk = 16 << 10;  // elements: the sources of a few ranks stay in the cache

std::string in_hexadecimal(const std::byte* element, std::size_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, element, bytes);
  return fmt::format("0x{:0{}x}", value, 2 * bytes);
}

struct Comparison {
  std::int64_t wrong = 0;
  std::int64_t first = -1;
};

double number_at(const std::byte* element, DType dtype) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, element, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::f64: return load(0.0);
    case DType::f32: return static_cast<double>(load(0.0f));
    case DType::f16: return static_cast<double>(to_float(load(Float16{})));
    case DType::bf16: return static_cast<double>(to_float(load(BFloat16{})));
    default: return std::numeric_limits<double>::quiet_NaN();  // is near nothing
  }
}

/// Half a unit in the last place, for numbers up to 1.
double rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-8;
  }
}

/// The tolerance between two elements; 0: they must be equal.
struct Nearness {
  double tolerance = 0;
  DType dtype = DType::f32;
  bool near(const std::byte* want, const std::byte* got) const {
    return tolerance > 0 && std::abs(number_at(want, dtype) - number_at(got, dtype)) <= tolerance;
  }
};

void compare(const std::byte* want, const std::byte* got, std::int64_t count, std::size_t bytes, std::int64_t offset,
             const Nearness& nearness, Comparison& result) {
  if (std::memcmp(want, got, static_cast<std::size_t>(count) * bytes) == 0) return;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * bytes;
    if (std::memcmp(want + at, got + at, bytes) == 0 || nearness.near(want + at, got + at)) continue;
    if (result.first < 0) result.first = offset + i;
    ++result.wrong;
  }
}

const std::byte* at(const Tensor& tensor, std::int64_t index) {
  return static_cast<const std::byte*>(tensor.data) + static_cast<std::size_t>(index) * size_of(tensor.dtype);
}

/// Compares a tensor with the expected elements that write(first, count, to) writes.
template <class Write>
std::int64_t compare_all(const Tensor& tensor, int lane, bool of_input, double tolerance, Write write,
                         std::optional<WrongElement>* first) {
  const std::size_t bytes = size_of(tensor.dtype);
  std::vector<std::byte> want(static_cast<std::size_t>(std::min(chunk, std::max<std::int64_t>(tensor.elements(), 1))) *
                              bytes);
  Comparison result;
  for (std::int64_t begin = 0; begin < tensor.elements(); begin += chunk) {
    const std::int64_t count = std::min(chunk, tensor.elements() - begin);
    write(begin, count, want.data());
    const bool none = result.first < 0;
    compare(want.data(), at(tensor, begin), count, bytes, begin, {tolerance, tensor.dtype}, result);
    if (none && result.first >= 0 && first && !*first) {
      *first = WrongElement{lane, result.first, of_input,
                            in_hexadecimal(want.data() + static_cast<std::size_t>(result.first - begin) * bytes, bytes),
                            in_hexadecimal(at(tensor, result.first), bytes)};
    }
  }
  return result.wrong;
}

}  // namespace

std::string to_string(const WrongElement& element) {
  return fmt::format("element {} of the {}{} is {} instead of {}", element.index, element.of_input ? "input" : "output",
                     element.lane > 0 ? fmt::format(" of operation {}", element.lane) : "", element.got, element.want);
}

Checker::Checker(const Signature& signature, int rank, int ranks, ValueKind kind, std::uint64_t seed, bool rounds)
    : signature_(signature), rank_(rank), ranks_(ranks), kind_(kind), seed_(seed) {
  if (!rounds || !reduces(signature.kind) || !is_floating_point(signature.dtype)) return;
  tolerance_ =
      rounding_unit(signature.dtype) * (ranks + 2) * static_cast<double>(largest_exact(signature.dtype, ranks));
}

Values Checker::values_of(int lane) const {
  return {signature_.kind, signature_.op, signature_.dtype,
          ranks_,          kind_,         seed_ * 1000 + static_cast<std::uint64_t>(lane)};
}

bool Checker::has_result() const {
  const bool on_root = signature_.kind == OpKind::reduce || signature_.kind == OpKind::gather;
  return !on_root || signature_.root == rank_;
}

void Checker::fill(const Work& work) const {
  constexpr int nonsense = 0xa5;
  for (std::size_t lane = 0; lane < work.lanes.size(); ++lane) {
    const auto& [in, out, rows] = work.lanes[lane];
    std::memset(in.data, nonsense, in.bytes());
    std::memset(out.data, nonsense, out.bytes());
    for (std::int64_t begin = 0; begin < in.elements(); begin += chunk) {
      const std::int64_t count = std::min(chunk, in.elements() - begin);
      values_of(static_cast<int>(lane)).write(rank_, begin, count, const_cast<std::byte*>(at(in, begin)));
    }
  }
}

std::int64_t Checker::wrong(const Work& work, std::optional<WrongElement>* first) const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < work.lanes.size(); ++i) {
    const auto& [in, out, rows] = work.lanes[i];
    const int lane = static_cast<int>(i);
    const Values values = values_of(lane);
    if (has_result()) {
      total += compare_all(
          out, lane, false, tolerance_,
          [&](auto begin, auto count, std::byte* to) { write_expected(values, work, begin, count, to); }, first);
    }
    if (work.in_place) continue;
    total += compare_all(
        in, lane, true, 0, [&](auto begin, auto count, std::byte* to) { values.write(rank_, begin, count, to); },
        first);
  }
  return total;
}

void Checker::write_expected(const Values& values, const Work& work, std::int64_t first, std::int64_t count,
                             std::byte* to) const {
  const std::int64_t block =
      has_blocks(signature_.kind) ? std::min(work.lanes.front().in.elements(), work.lanes.front().out.elements()) : 0;
  const std::size_t bytes = size_of(signature_.dtype);
  const auto from_blocks = [&](std::int64_t block_elements, std::int64_t offset) {  // of each rank in turn
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t source = (first + done) / block_elements, place = (first + done) % block_elements;
      const std::int64_t length = std::min(count - done, block_elements - place);
      values.write(static_cast<int>(source), offset + place, length, to + static_cast<std::size_t>(done) * bytes);
      done += length;
    }
  };
  switch (signature_.kind) {
    case OpKind::broadcast: return values.write(signature_.root, first, count, to);
    case OpKind::scatter: return values.write(signature_.root, rank_ * block + first, count, to);
    case OpKind::send_recv: return values.write((rank_ + ranks_ - 1) % ranks_, first, count, to);
    case OpKind::all_gather:
    case OpKind::gather: return from_blocks(block, 0);
    case OpKind::all_to_all: return from_blocks(block / ranks_, rank_ * (block / ranks_));
    default: break;
  }
  const std::int64_t begin = first + (signature_.kind == OpKind::reduce_scatter ? rank_ * block : 0);
  std::vector<std::byte> inputs(static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(count) * bytes);
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < ranks_; ++rank) {
    std::byte* input = inputs.data() + static_cast<std::size_t>(rank) * static_cast<std::size_t>(count) * bytes;
    values.write(rank, begin, count, input);
    sources.push_back(input);
  }
  reference_reduction(signature_.op, signature_.dtype, sources, count, to);
}

}  // namespace kolo::bench

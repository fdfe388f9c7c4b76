#include "bench/kolo_bench/flag_values.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include <kolo/config.h>

namespace kolo::bench {
namespace {

constexpr std::array reduce_ops{ReduceOp::sum,         ReduceOp::product,   ReduceOp::min,    ReduceOp::max,
                                ReduceOp::average,     ReduceOp::bit_and,   ReduceOp::bit_or, ReduceOp::bit_xor,
                                ReduceOp::logical_and, ReduceOp::logical_or};
constexpr std::size_t ops_of_nccl = 5;  // the first ones

constexpr std::array types{DType::i8,  DType::u8,  DType::i32,  DType::u32, DType::i64, DType::u64,    DType::f16,
                           DType::f32, DType::f64, DType::bf16, DType::i16, DType::u16, DType::boolean};
constexpr std::size_t types_of_nccl = 10;

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void refuse(const Given& given, std::string_view accepted) {
  throw UsageError(fmt::format("{} is '{}'; it takes {}", given.flag, given.value, accepted));
}

std::int64_t bytes_of(const Given& given) {
  const auto bytes = parse_bytes(given.value);
  if (!bytes || *bytes < 1)
    refuse(given, "a positive number of bytes, such as 8, 64K or 1.5G (K, M, G count in 1024s)");
  return *bytes;
}

std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t most) {
  const auto value = number_in<std::int64_t>(given.value);
  if (!value || *value < least || *value > most)
    refuse(given, fmt::format("a whole number from {} to {}", least, most));
  return *value;
}

double number_of(const Given& given, std::string_view accepted) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value <= 0 || *value > 1e9) refuse(given, accepted);
  return *value;
}

double share_of(const Given& given) {
  std::string_view text = given.value;
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  const auto value = number_in<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0) refuse(given, "a share, such as 5% or 0.05");
  return percent ? *value / 100 : *value;
}

std::string file_of(const Given& given) {
  if (given.value.empty()) refuse(given, "the name of a file");
  return given.value;
}

std::vector<ReduceOp> ops_of(const Given& given) {
  if (given.value == "all") return {reduce_ops.begin(), reduce_ops.begin() + ops_of_nccl};
  std::string accepted = "one of all";
  for (const ReduceOp op : reduce_ops) {
    if (given.value == nccl_name(op) || given.value == to_string(op)) return {op};
    accepted += fmt::format(", {}", nccl_name(op));
  }
  if (given.value == "mulsum")
    throw UsageError(
        "-o mulsum is an operation of NCCL's own, which scales in the reduction; kolo has none like it: use -o sum");
  if (given.value == "adasum")
    throw UsageError("-o adasum is made of several reductions of a backend, not one; use -o sum");
  refuse(given, accepted);
}

std::vector<DType> dtypes_of(const Given& given) {
  if (given.value == "all") return {types.begin(), types.begin() + types_of_nccl};
  std::string accepted = "one of all";
  for (const DType dtype : types) {
    if (given.value == nccl_name(dtype) || given.value == to_string(dtype)) return {dtype};
    accepted += fmt::format(", {}", nccl_name(dtype));
  }
  if (given.value == "f8e4m3" || given.value == "f8e5m2") {
    throw UsageError(
        fmt::format("-d {} is an 8-bit float, and kolo has none; use -d half or -d bfloat16", given.value));
  }
  refuse(given, accepted + ", or kolo's own names, such as f32");
}

}  // namespace kolo::bench

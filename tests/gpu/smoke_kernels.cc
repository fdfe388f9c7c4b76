// The kernels of ops/gpu, beside the functions of the host from which they are made: the same bits.

#include <fmt/format.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/gpu/packer.h"
#include "ops/kernels/reduce.h"
#include "tests/gpu/calls.h"
#include "tests/gpu/smoke.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"

namespace kolo::smoke {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t count) {
  std::mt19937_64 random(count);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void require_same(const Bytes& found, const Bytes& wanted, const std::string& what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (found[i] == wanted[i]) continue;
    throw Wrong(fmt::format("{}: byte {} of {} is {:#x} and should be {:#x}", what, i, wanted.size(),
                            std::to_integer<int>(found[i]), std::to_integer<int>(wanted[i])));
  }
}

/// Pieces of random lengths, between addresses that have their alignment in common, and ones that have not.
void check_copies(Gpu& gpu, std::size_t pieces, std::size_t longest) {
  const GpuStream stream(gpu, StreamPriority::high);
  Packer packer(gpu, stream.get());
  std::mt19937 random(7);
  const Bytes from = random_bytes(pieces * (longest + 64));
  Bytes wanted(from.size(), std::byte{0xa5});
  const GpuBuffer source = on_gpu(gpu, from), target = on_gpu(gpu, wanted);
  std::vector<PackItem> items;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t base = i * (longest + 64), length = random() % (longest + 1);
    const std::size_t shift = i % 2 == 0 ? 0 : random() % 17;  // of one side only
    std::memcpy(wanted.data() + base + shift, from.data() + base + i % 16, length);
    items.push_back({source.data() + base + i % 16, target.data() + base + shift, static_cast<std::int64_t>(length)});
  }
  packer.run(items, {DType::u8, DType::u8});
  wait(gpu, stream.get());
  require_same(bytes_of(gpu, target.data(), target.size()), wanted, fmt::format("copies of {} pieces", pieces));
}

/// One launch, timed; returns GB/s of what is read and written.
double time_pack(Line& line, Gpu& gpu, const Conversion& how, std::int64_t count, std::size_t shift) {
  const GpuStream stream(gpu, StreamPriority::high);
  const auto elements = static_cast<std::size_t>(count);
  const GpuBuffer from(gpu, elements * size_of(how.from) + shift), to(gpu, elements * size_of(how.to));
  gpu.clear(from.data(), from.size());
  std::vector<PackItem> items{{from.data() + shift, to.data(), count}};
  const std::int64_t tiles = lay_tiles(items, how);
  const double seconds = line.time([&] {
    gpu.pack(items.data(), items.size(), tiles, how, stream.get());
    wait(gpu, stream.get());
  });
  return static_cast<double>(elements * (size_of(how.from) + size_of(how.to))) / seconds / 1e9;
}

/// An element whose key, if it is one, is that of a number.
template <class To, class From>
From element(std::size_t i, bool descending) {
  constexpr bool to_value = has_key<To> && !has_key<From>;
  using Value = std::conditional_t<to_value, To, From>;
  Value value{};
  if constexpr (std::is_same_v<Value, Truth>)
    value.byte = static_cast<std::uint8_t>(i % 3);
  else
    value = element_value<Value>(3, 0, 0, i);
  if constexpr (to_value)
    return converted<From, To>(value, Conversion{.descending = descending});
  else
    return value;
}

template <class To, class From>
void check_conversion(Gpu& gpu, const Conversion& how, std::size_t shift, void* stream) {
  constexpr std::size_t count = 9000;
  Bytes from(count * sizeof(From) + shift), wanted(count * sizeof(To) + shift, std::byte{0x5a});
  for (std::size_t i = 0; i < count; ++i) {
    const From value = element<To, From>(i, how.descending);
    const To result = converted<To, From>(value, how);
    std::memcpy(from.data() + shift + i * sizeof(From), &value, sizeof(From));
    std::memcpy(wanted.data() + i * sizeof(To), &result, sizeof(To));
  }
  const GpuBuffer source = on_gpu(gpu, from), target = on_gpu(gpu, Bytes(wanted.size(), std::byte{0x5a}));
  std::vector<PackItem> items{{source.data() + shift, target.data(), count}};
  const std::int64_t tiles = lay_tiles(items, how);
  gpu.pack(items.data(), items.size(), tiles, how, stream);
  wait(gpu, stream);
  require_same(
      bytes_of(gpu, target.data(), target.size()), wanted,
      fmt::format("{} to {}, scale {}, shifted by {}", to_string(how.from), to_string(how.to), how.scale, shift));
}

/// Every kernel that converts floats, or (`of_floats` false) all others.
void check_conversions(Line& line, Gpu& gpu, bool of_floats) {
  const GpuStream stream(gpu, StreamPriority::high);
  int kernels = 0;
  for (const DType from : all_types) {
    for (const DType to : all_types) {
      if (!convertible(from, to) || (is_floating_point(from) && is_floating_point(to)) != of_floats) continue;
      ++kernels;
      std::vector<Conversion> ways{{from, to, 0.5}, {from, to, 1, 3}, {from, to, 2, 2, 0.25}};
      if (by_key(from, to)) ways = {{from, to}, {from, to, 1, 1, 1, true}};
      if (from != to && !by_key(from, to)) ways.push_back({from, to});
      for (const Conversion& how : ways) {
        for (const std::size_t shift : {std::size_t{0}, size_of(from), std::size_t{1}}) {
          with_types(how, [&]<class To, class From>() { check_conversion<To, From>(gpu, how, shift, stream.get()); });
        }
      }
    }
  }
  line.note(fmt::format("{} kernels", kernels));
}

template <class T>
void check_combination(Gpu& gpu, DType dtype, ReduceOp op, double scale, void* stream) {
  constexpr std::size_t count = 3000, stride = count * sizeof(T) + 24;
  constexpr int ranks = 5, absent = 2;
  Bytes from(ranks * stride), wanted(count * sizeof(T));
  std::vector<const void*> sources;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      const T value = element_value<T>(1, rank, 0, i);
      std::memcpy(from.data() + rank * stride + i * sizeof(T), &value, sizeof(T));
    }
    if (rank != absent) sources.push_back(from.data() + rank * stride);
  }
  Combination what{.stride = stride, .count = count, .dtype = dtype, .op = op, .prescale = scale, .ranks = ranks};
  what.postscale = scale == 1 ? 1 : 3 * scale;
  what.sources = what.divide_by = ranks - 1;
  what.absent[0] = std::uint64_t{1} << absent;
  void* const destination = wanted.data();
  reduce({dtype, op, what.prescale, what.postscale, what.divide_by}, sources, {&destination, 1}, count);
  const GpuBuffer source = on_gpu(gpu, from), target(gpu, wanted.size());
  what.from = source.data();
  what.to = target.data();
  gpu.combine(what, stream);
  wait(gpu, stream);
  require_same(bytes_of(gpu, target.data(), target.size()), wanted,
               fmt::format("{} of {}, scale {}", to_string(op), to_string(dtype), scale));
}

void check_combinations(Line& line, Gpu& gpu) {
  const GpuStream stream(gpu, StreamPriority::high);
  for (const DType dtype : all_types) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!reducible(op, dtype)) continue;
      for (const double scale : {1.0, -2.5}) {
        if (scale != 1 && !scalable(op, dtype)) continue;
        with_type(dtype, [&]<class T>() { check_combination<T>(gpu, dtype, op, scale, stream.get()); });
      }
    }
  }
  const std::int64_t count = pretended() ? 10'000 : 4 << 20;
  constexpr int ranks = 8;
  const GpuBuffer from(gpu, static_cast<std::size_t>(4 * count * ranks)), to(gpu, static_cast<std::size_t>(4 * count));
  gpu.clear(from.data(), from.size());
  Combination what{.from = from.data(), .stride = 4 * count, .to = to.data(), .count = count};
  what.sources = what.ranks = ranks;
  const double seconds = line.time([&] {
    gpu.combine(what, stream.get());
    wait(gpu, stream.get());
  });
  line.note(fmt::format("8 ranks' f32: {:.1f} GB/s", static_cast<double>(4 * count * (ranks + 1)) / seconds / 1e9));
}

}  // namespace

void check_kernels(Checks& checks, Gpu& gpu) {
  const std::int64_t bytes = pretended() ? 1 << 18 : 256 << 20;
  checks.run("pack: plain copies, aligned or not, few pieces and thousands", [&](Line& line) {
    check_copies(gpu, 1, 3 << 20);
    check_copies(gpu, 40, 50'000);
    check_copies(gpu, 5000, 300);
    const double unaligned = time_pack(line, gpu, {DType::u8, DType::u8}, bytes, 1);
    const double aligned = time_pack(line, gpu, {DType::u8, DType::u8}, bytes, 0);
    line.note(fmt::format("{} bytes: {:.1f} GB/s aligned, {:.1f} shifted by 1", bytes, aligned, unaligned));
  });
  checks.run("pack: conversions of floats, with scales", [&](Line& line) {
    check_conversions(line, gpu, true);
    for (const DType half : {DType::f16, DType::bf16}) {
      const double back = time_pack(line, gpu, {half, DType::f32, 0.5}, bytes / 4, 0);
      const double there = time_pack(line, gpu, {DType::f32, half, 0.5}, bytes / 4, 0);
      line.note(fmt::format("f32 to {} {:.1f} GB/s, back {:.1f}", to_string(half), there, back));
    }
  });
  checks.run("pack: conversions of integers and to keys and back", [&](Line& line) {
    check_conversions(line, gpu, false);
    line.note(fmt::format("i32 to i64 {:.1f} GB/s", time_pack(line, gpu, {DType::i32, DType::i64}, bytes / 8, 0)));
  });
  checks.run("combine: every op of every type", [&](Line& line) { check_combinations(line, gpu); });
}

}  // namespace kolo::smoke

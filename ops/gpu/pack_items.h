#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/kernels/element.h"

// How one launch copies any number of pieces of memory: packing, unpacking, scaling and casting are lists of pack
// items.
//
// An item's elements are cut into tiles of `tile_bytes`; a block of `threads_of_tile` threads serves a tile, finds its
// item by bisection, and goes through it in vectors as wide as the two addresses have their alignment in common: the
// elements before the first aligned one belong to the first tile, those that fill no vector to the last. All of it is
// plain functions, which tests run on the host.

namespace kolo {

/// Elements that go from one place to another; the places may be the same.
struct PackItem {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t count = 0;       ///< in elements
  std::int64_t first_tile = 0;  ///< see lay_tiles()
};

inline constexpr std::int64_t tile_bytes = 16 << 10;  ///< of the wider side
inline constexpr int threads_of_tile = 256;
inline constexpr int widest_vector = 16;  ///< bytes

/// How an item's elements are grouped: `head` single ones, then vectors of `lanes`, then the rest.
struct Lanes {
  int lanes = 1;
  std::int64_t head = 0;
};

/// What is left of an address above a multiple of `size`, a power of two: a division would take longer than all else.
constexpr std::uintptr_t above(std::uintptr_t address, std::uintptr_t size) {
  return address & (size - 1);
}

/// The widest grouping in which both sides' vectors are aligned to their size, at most 16 bytes of the wider element.
/// Addresses that are not multiples of their element's size get 1: the elements are then read byte by byte.
constexpr Lanes lanes_of(std::uintptr_t from, std::uintptr_t to, int from_size, int to_size, std::int64_t count) {
  const int wider = from_size > to_size ? from_size : to_size;
  const auto from_bytes = static_cast<std::uintptr_t>(from_size), to_bytes = static_cast<std::uintptr_t>(to_size);
  if (above(from, from_bytes) != 0 || above(to, to_bytes) != 0) return {1, 0};
  for (int lanes = widest_vector / wider; lanes > 1; lanes /= 2) {
    const auto width = static_cast<std::uintptr_t>(lanes);
    const std::uintptr_t head = above(-to, width * to_bytes) / to_bytes;
    if (above(from + head * from_bytes, width * from_bytes) != 0) continue;
    return {lanes, static_cast<std::int64_t>(head) < count ? static_cast<std::int64_t>(head) : count};
  }
  return {1, 0};
}

constexpr std::int64_t tile_elements(int from_size, int to_size) {
  return tile_bytes / (from_size > to_size ? from_size : to_size);
}

/// How many tiles `count` elements take, of which `head` precede the first vector.
constexpr std::int64_t tiles_of(std::int64_t count, std::int64_t head, std::int64_t elements) {
  if (count == 0) return 0;
  const std::int64_t tiles = (count - head + elements - 1) / elements;
  return tiles > 0 ? tiles : 1;
}

/// Elements [begin, end) of an item that tile number `tile` of its `tiles` holds.
struct TileRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
constexpr TileRange range_of_tile(std::int64_t tile, std::int64_t tiles, std::int64_t count, std::int64_t head,
                                  std::int64_t elements) {
  return {tile == 0 ? 0 : head + tile * elements, tile == tiles - 1 ? count : head + (tile + 1) * elements};
}

/// The item whose tile number `tile` of the whole launch is.
constexpr std::int64_t item_of_tile(const PackItem* items, std::int64_t count, std::int64_t tile) {
  std::int64_t first = 0, last = count - 1;
  while (first < last) {
    const std::int64_t middle = first + (last - first + 1) / 2;
    if (items[middle].first_tile <= tile)
      first = middle;
    else
      last = middle - 1;
  }
  return first;
}

/// A copy counts bytes, whatever its elements are.
constexpr int size_in_items(DType dtype, const Conversion& how) {
  return how.is_copy() ? 1 : static_cast<int>(size_of(dtype));
}

/// Numbers the tiles of all items, drops those without elements (and copies of something to itself), and returns how
/// many tiles there are. Of a copy, turns counts of elements into bytes: call it once.
inline std::int64_t lay_tiles(std::vector<PackItem>& items, const Conversion& how) {
  const bool copy = how.is_copy();
  std::erase_if(items, [&](const PackItem& item) { return item.count == 0 || (copy && item.from == item.to); });
  const int from = size_in_items(how.from, how), to = size_in_items(how.to, how);
  std::int64_t tiles = 0;
  for (PackItem& item : items) {
    if (copy) item.count *= static_cast<std::int64_t>(size_of(how.from));
    item.first_tile = tiles;
    const Lanes lanes = lanes_of(reinterpret_cast<std::uintptr_t>(item.from), reinterpret_cast<std::uintptr_t>(item.to),
                                 from, to, item.count);
    tiles += tiles_of(item.count, lanes.head, tile_elements(from, to));
  }
  return tiles;
}

/// `count` elements that are loaded and stored in one instruction.
template <class T, int count>
struct alignas(sizeof(T) * count) [[gnu::may_alias]] Vector {
  T lane[static_cast<std::size_t>(count)];
};

/// The words in which a vector of `bytes` bytes is copied.
template <int bytes>
using Words = std::conditional_t<bytes >= 8, Vector<std::uint64_t, (bytes >= 8 ? bytes / 8 : 1)>,
                                 std::conditional_t<bytes == 4, Vector<std::uint32_t, 1>, Vector<std::uint16_t, 1>>>;

/// Leaves elements as they are.
struct Keep {
  template <class T>
  constexpr T operator()(T value) const {
    return value;
  }
};

/// A vector of elements, loaded and not yet converted: in words, since a GPU loads at most four elements at a time.
template <class T, int lanes>
using Loaded = Words<static_cast<int>(sizeof(T)) * lanes>;

template <class To, class From, int lanes, class Convert>
constexpr void store_vector(const Loaded<From, lanes>& in, std::byte* to, Convert convert) {
  if constexpr (std::is_same_v<Convert, Keep>) {
    *reinterpret_cast<Loaded<From, lanes>*>(to) = in;
  } else {
    Vector<From, lanes> values{};
    Vector<To, lanes> out{};
    Loaded<To, lanes> words{};
    __builtin_memcpy(static_cast<void*>(&values), &in, sizeof(values));
    for (int i = 0; i < lanes; ++i) out.lane[i] = convert(values.lane[i]);
    __builtin_memcpy(&words, &out, sizeof(out));
    *reinterpret_cast<Loaded<To, lanes>*>(to) = words;
  }
}

template <class To, class From, class Convert>
constexpr void pack_element(const std::byte* from, std::byte* to, Convert convert) {
  From in{};
  __builtin_memcpy(&in, from, sizeof(From));
  const To out = convert(in);
  __builtin_memcpy(to, &out, sizeof(To));
}

/// What thread `thread` of a tile's `threads` copies of elements [range.begin, range.end), the vectors beginning at
/// `head`.
template <class To, class From, int lanes, class Convert>
constexpr void pack_range(const PackItem& item, TileRange range, std::int64_t head, int thread, int threads,
                          Convert convert) {
  constexpr auto from_size = static_cast<std::int64_t>(sizeof(From)), to_size = static_cast<std::int64_t>(sizeof(To));
  const std::int64_t first = range.begin > head ? range.begin : head;
  const std::int64_t vectors = (range.end - first) / lanes;
  for (std::int64_t i = range.begin + thread; i < first; i += threads) {
    pack_element<To, From>(item.from + i * from_size, item.to + i * to_size, convert);
  }
  std::int64_t vector = thread;
  if constexpr (lanes > 1) {
    const auto load = [&](std::int64_t v) {
      return *reinterpret_cast<const Loaded<From, lanes>*>(item.from + (first + v * lanes) * from_size);
    };
    const auto store = [&](std::int64_t v, const Loaded<From, lanes>& in) {
      store_vector<To, From, lanes, Convert>(in, item.to + (first + v * lanes) * to_size, convert);
    };
    const std::int64_t next = threads;
    for (; vector + 3 * next < vectors; vector += 4 * next) {  // four loads on their way at a time
      const auto a = load(vector), b = load(vector + next), c = load(vector + 2 * next), d = load(vector + 3 * next);
      store(vector, a);
      store(vector + next, b);
      store(vector + 2 * next, c);
      store(vector + 3 * next, d);
    }
    for (; vector < vectors; vector += next) store(vector, load(vector));
  }
  for (std::int64_t i = first + (lanes > 1 ? vectors * lanes : 0) + thread; i < range.end; i += threads) {
    pack_element<To, From>(item.from + i * from_size, item.to + i * to_size, convert);
  }
}

/// Thread `thread`'s part of tile number `tile` of a launch.
template <class To, class From, class Convert>
constexpr void pack_tile(const PackItem* items, std::int64_t count, std::int64_t tile, std::int64_t all_tiles,
                         int thread, int threads, Convert convert) {
  constexpr int from_size = sizeof(From), to_size = sizeof(To);
  constexpr std::int64_t elements = tile_elements(from_size, to_size);
  constexpr int widest = widest_vector / (from_size > to_size ? from_size : to_size);
  const std::int64_t index = item_of_tile(items, count, tile);
  const PackItem& item = items[index];
  const std::int64_t tiles = (index + 1 < count ? items[index + 1].first_tile : all_tiles) - item.first_tile;
  const Lanes lanes = lanes_of(reinterpret_cast<std::uintptr_t>(item.from), reinterpret_cast<std::uintptr_t>(item.to),
                               from_size, to_size, item.count);
  const TileRange range = range_of_tile(tile - item.first_tile, tiles, item.count, lanes.head, elements);
  if constexpr (widest >= 16) {
    if (lanes.lanes == 16) return pack_range<To, From, 16>(item, range, lanes.head, thread, threads, convert);
  }
  if constexpr (widest >= 8) {
    if (lanes.lanes == 8) return pack_range<To, From, 8>(item, range, lanes.head, thread, threads, convert);
  }
  if constexpr (widest >= 4) {
    if (lanes.lanes == 4) return pack_range<To, From, 4>(item, range, lanes.head, thread, threads, convert);
  }
  if constexpr (widest >= 2) {
    if (lanes.lanes == 2) return pack_range<To, From, 2>(item, range, lanes.head, thread, threads, convert);
  }
  pack_range<To, From, 1>(item, range, lanes.head, thread, threads, convert);
}

/// The type of an element's key (see element.h); its own, where it has none.
constexpr DType key_type(DType dtype) {
  if (dtype == DType::boolean) return DType::u8;
  if (!is_floating_point(dtype)) return dtype;
  return dtype == DType::f64 ? DType::u64 : DType::u32;
}

/// Whether one of the two is the key of the other.
constexpr bool by_key(DType from, DType to) {
  return from != to && (key_type(from) == to || key_type(to) == from);
}

/// Whether elements can be converted so: to the same type, to the type in which they are accumulated, or that of their
/// keys, or back.
constexpr bool convertible(DType from, DType to) {
  if (by_key(from, to)) return true;
  if (from == to) return from != DType::boolean;
  const auto wide = [](DType dtype) {
    switch (dtype) {
      case DType::f16:
      case DType::bf16: return DType::f32;
      case DType::i32:
      case DType::i16:
      case DType::i8: return DType::i64;
      case DType::u32:
      case DType::u16:
      case DType::u8: return DType::u64;
      default: return dtype;
    }
  };
  return wide(from) == to || wide(to) == from;
}

/// Calls body.template operator()<To, From>() for a conversion that is convertible() and no copy.
template <class Body>
constexpr void with_types(const Conversion& how, Body body) {
  const auto other_way = [&]<class Narrow, class Wide>() {
    if (how.from == how.to)
      body.template operator()<Narrow, Narrow>();
    else if (how.from == DTypeOf<Wide>::value)
      body.template operator()<Narrow, Wide>();
    else
      body.template operator()<Wide, Narrow>();
  };
  const auto key_way = [&]<class Value>() {
    if (key_type(how.from) == how.to)
      body.template operator()<Key<Value>, Value>();
    else
      body.template operator()<Value, Key<Value>>();
  };
  if (by_key(how.from, how.to)) {
    switch (key_type(how.from) == how.to ? how.from : how.to) {
      case DType::f64: return key_way.template operator()<double>();
      case DType::f32: return key_way.template operator()<float>();
      case DType::f16: return key_way.template operator()<Float16>();
      case DType::bf16: return key_way.template operator()<BFloat16>();
      default: return key_way.template operator()<Truth>();
    }
  }
  switch (size_of(how.from) < size_of(how.to) ? how.from : how.to) {
    case DType::f64: return body.template operator()<double, double>();
    case DType::f32: return body.template operator()<float, float>();
    case DType::f16: return other_way.template operator()<Float16, float>();
    case DType::bf16: return other_way.template operator()<BFloat16, float>();
    case DType::i64: return body.template operator()<std::int64_t, std::int64_t>();
    case DType::i32: return other_way.template operator()<std::int32_t, std::int64_t>();
    case DType::i16: return other_way.template operator()<std::int16_t, std::int64_t>();
    case DType::i8: return other_way.template operator()<std::int8_t, std::int64_t>();
    case DType::u64: return body.template operator()<std::uint64_t, std::uint64_t>();
    case DType::u32: return other_way.template operator()<std::uint32_t, std::uint64_t>();
    case DType::u16: return other_way.template operator()<std::uint16_t, std::uint64_t>();
    case DType::u8: return other_way.template operator()<std::uint8_t, std::uint64_t>();
    case DType::boolean: return;
  }
}

/// Values of several ranks that lie one after the other become one: element i of `to` is made of element i of every
/// source.
struct Combination {
  const std::byte* from = nullptr;  ///< that of rank 0
  std::int64_t stride = 0;          ///< bytes from one rank's to the next's
  std::byte* to = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1;
  double postscale = 1;
  int divide_by = 1;
  int sources = 0;                ///< of them
  std::uint64_t absent[16] = {};  ///< ranks (bits) whose values do not count
  int ranks = 0;
};
inline constexpr int most_combined_ranks = 1024;

/// Element `i` of a combination.
template <class T>
constexpr void combine_element(const Combination& what, std::int64_t i) {
  int rank = -1;
  const auto next = [&](int) {
    do ++rank;
    while ((what.absent[rank / 64] >> (rank % 64) & 1) != 0);
    const std::byte* const from = what.from + rank * what.stride + i * static_cast<std::int64_t>(sizeof(T));
    if constexpr (std::is_same_v<T, bool>) {
      return *from != std::byte{0};  // any other byte is true
    } else {
      T value{};
      __builtin_memcpy(&value, from, sizeof(T));
      return value;
    }
  };
  const T result = reduced_element<T>(what.op, what.prescale, what.postscale, what.divide_by, what.sources, next);
  __builtin_memcpy(what.to + i * static_cast<std::int64_t>(sizeof(T)), &result, sizeof(T));
}

}  // namespace kolo

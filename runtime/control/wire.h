#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <kolo/error.h>

#include "runtime/types/rank_set.h"

namespace kolo {

/// Appends values to a growing message: little-endian numbers of fixed width (every supported machine is
/// little-endian), and strings and lists behind a 32-bit length.
class Writer {
 public:
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void put(T value) { append(&value, sizeof(T)); }
  void put(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    append(text.data(), text.size());
  }

  /// Appends bytes as they are.
  void append(std::span<const std::byte> bytes) { append(bytes.data(), bytes.size()); }

  bool empty() const { return bytes_.empty(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

  /// Calls `write`; if that throws, nothing has been written.
  template <class Write>
  void all_or_nothing(Write&& write) {
    const std::size_t before = bytes_.size();
    try {
      write();
    } catch (...) {
      bytes_.resize(before);
      throw;
    }
  }

 private:
  void append(const void* data, std::size_t size) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, data, size);
  }

  std::vector<std::byte> bytes_;
};

/// Reads a Writer's message. Never reads beyond its end, and never expands it into much more than its bytes: throws
/// Error{backend} if the message is malformed.
class Reader {
 public:
  static constexpr int most_ranks = 1 << 22;

  /// `ranks`: how many ranks there are, at most.
  explicit Reader(std::span<const std::byte> bytes, int ranks = most_ranks) : rest_(bytes), ranks_(ranks) {}

  int ranks() const { return ranks_; }

  bool done() const { return rest_.empty(); }

  template <class T>
  requires(std::is_arithmetic_v<T>) T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// An enumerator; `count` is the number of enumerators, numbered from 0.
  template <class T>
  requires(std::is_enum_v<T>) T get(int count) {
    const auto value = get<std::underlying_type_t<T>>();
    if (value >= count) throw Error(ErrorCode::backend, "malformed control message (unknown enumerator)");
    return static_cast<T>(value);
  }
  std::string get_string() {
    const auto text = take(get<std::uint32_t>());
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  void copy_to(std::span<std::byte> bytes) {
    const auto taken = take(bytes.size());
    std::copy(taken.begin(), taken.end(), bytes.begin());
  }
  /// Takes note that one value stands for `count`: of all such in a message there may be as many as a thousand tensors
  /// of all ranks have.
  void expand(std::size_t count) {
    constexpr std::size_t always = 1 << 16, for_each_rank = 1024, most = 1 << 24;
    expanded_ += count;
    if (expanded_ > std::min(always + for_each_rank * static_cast<std::size_t>(ranks_), most))
      throw Error(ErrorCode::backend, "malformed control message (too many sizes)");
  }
  /// The length of a list whose elements take at least `element_bytes` each.
  std::uint32_t get_length(std::size_t element_bytes) {
    const auto length = get<std::uint32_t>();
    if (length > rest_.size() / element_bytes) throw Error(ErrorCode::backend, "malformed control message (too short)");
    return length;
  }

 private:
  std::span<const std::byte> take(std::size_t count) {
    if (count > rest_.size()) throw Error(ErrorCode::backend, "malformed control message (too short)");
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  std::span<const std::byte> rest_;
  int ranks_;
  std::size_t expanded_ = 0;
};

/// Room for `count` bytes more, so that adding them cannot throw; grows as a vector does by itself.
inline void make_room(std::vector<std::byte>& stream, std::size_t count) {
  if (stream.capacity() - stream.size() < count) stream.reserve(std::max(stream.size() + count, 2 * stream.capacity()));
}

/// Messages in a stream of bytes: each behind its length, which takes 32 bits. If it throws, the stream is as before.
template <class Stream>
void append_framed(Stream& stream, std::span<const std::byte> message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  const auto* const head = reinterpret_cast<const std::byte*>(&length);
  const std::size_t before = stream.size();
  try {
    stream.insert(stream.end(), head, head + sizeof length);
    stream.insert(stream.end(), message.begin(), message.end());
  } catch (...) {
    stream.resize(before);
    throw;
  }
}

/// Takes those out that are whole, and calls take(bytes) for each; one for which that throws remains. Returns false,
/// with the stream as it is, if the next one would be longer than `longest` bytes.
template <class Take>
bool take_framed(std::vector<std::byte>& stream, std::size_t longest, Take&& take) {
  std::size_t at = 0;
  bool sound = true;
  const auto forget_taken = [&] { stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(at)); };
  try {
    while (stream.size() - at >= sizeof(std::uint32_t)) {
      std::uint32_t length = 0;
      std::memcpy(&length, stream.data() + at, sizeof length);
      sound = length <= longest;
      if (!sound || stream.size() - at - sizeof length < length) break;
      take(std::span(stream).subspan(at + sizeof length, length));
      at += sizeof length + length;
    }
  } catch (...) {
    forget_taken();
    throw;
  }
  forget_taken();
  return sound;
}

/// A set travels as a list of ranges: in the usual cases its size does not depend on the number of ranks.
inline void encode(Writer& writer, const RankSet& ranks) {
  const auto& list = ranks.ranges();
  writer.put(static_cast<std::uint32_t>(list.size()));
  for (const auto [first, last] : list) {
    writer.put(static_cast<std::int32_t>(first));
    writer.put(static_cast<std::int32_t>(last));
  }
}

inline RankSet decode_rank_set(Reader& reader) {
  RankSet result;
  int total = 0;
  for (auto count = reader.get_length(8); count > 0; --count) {
    const auto first = reader.get<std::int32_t>();
    const auto last = reader.get<std::int32_t>();
    if (first < 0 || last < first || last >= reader.ranks() || (total += last - first + 1) > reader.ranks()) {
      throw Error(ErrorCode::backend, "malformed control message (bad range of ranks)");
    }
    result.add(RankSet::range(first, last + 1));
  }
  return result;
}

}  // namespace kolo

#include "runtime/negotiation/messages.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace kolo {
namespace {

constexpr int enumerators(OpKind) {
  return op_kind_count;
}
constexpr int enumerators(ReduceOp) {
  return reduce_op_count;
}
constexpr int enumerators(DType) {
  return dtype_count;
}
constexpr int enumerators(DeviceKind) {
  return static_cast<int>(DeviceKind::cuda) + 1;
}
constexpr int enumerators(ErrorCode) {
  return static_cast<int>(ErrorCode::backend) + 1;
}

/// The fields of a message, and of the public types in it.
template <class T>
auto fields_of(T& of) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, Failure>) {
    return std::tie(of.code, of.message);
  } else if constexpr (std::is_same_v<Plain, GroupMember>) {
    return std::tie(of.name, of.dtype, of.shape);
  } else if constexpr (std::is_same_v<Plain, Signature>) {
    return std::tie(of.kind, of.op, of.dtype, of.device, of.root, of.prescale, of.postscale, of.divide_by_group,
                    of.priority, of.shape, of.members);
  } else {
    return Plain::fields(of);
  }
}

template <class T>
void put(Writer& writer, const std::optional<T>& value);
template <class T>
void put(Writer& writer, const std::vector<T>& values);
void put(Writer& writer, const std::vector<std::int64_t>& sizes);
template <class T>
void get(Reader& reader, std::optional<T>& value);
template <class T>
void get(Reader& reader, std::vector<T>& values);
void get(Reader& reader, std::vector<std::int64_t>& sizes);

template <class T>
void put(Writer& writer, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    writer.put(static_cast<std::uint8_t>(value));
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>) {
    writer.put(value);
  } else if constexpr (std::is_same_v<T, RankSet>) {
    encode(writer, value);
  } else if constexpr (std::is_same_v<T, Shape>) {
    writer.put(static_cast<std::uint8_t>(std::min(value.dims(), 255)));  // more than max_dims is an error anyway
    for (std::int64_t extent : value.extents()) writer.put(extent);
  } else {
    std::apply([&](const auto&... field) { (put(writer, field), ...); }, fields_of(value));
  }
}

template <class T>
void put(Writer& writer, const std::optional<T>& value) {
  put(writer, value.has_value());
  if (value) put(writer, *value);
}

template <class T>
void put(Writer& writer, const std::vector<T>& values) {
  writer.put(static_cast<std::uint32_t>(values.size()));
  for (const T& value : values) put(writer, value);
}

/// Sizes as runs of equal numbers: even splits stay short whatever the number of ranks.
void put(Writer& writer, const std::vector<std::int64_t>& sizes) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> runs;
  for (std::int64_t size : sizes) {
    if (runs.empty() || runs.back().second != size) runs.emplace_back(0, size);
    ++runs.back().first;
  }
  writer.put(static_cast<std::uint32_t>(runs.size()));
  for (const auto& [count, size] : runs) {
    writer.put(count);
    writer.put(size);
  }
}

template <class T>
void get(Reader& reader, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = reader.get<std::uint8_t>() != 0;
  } else if constexpr (std::is_arithmetic_v<T>) {
    value = reader.get<T>();
  } else if constexpr (std::is_enum_v<T>) {
    value = reader.get<T>(enumerators(T{}));
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = reader.get_string();
  } else if constexpr (std::is_same_v<T, RankSet>) {
    value = decode_rank_set(reader);
  } else if constexpr (std::is_same_v<T, Shape>) {
    std::int64_t extents[256] = {};
    const auto dims = reader.get<std::uint8_t>();
    for (int dim = 0; dim < std::min<int>(dims, Shape::max_dims); ++dim) extents[dim] = reader.get<std::int64_t>();
    value = Shape(std::span<const std::int64_t>(extents, dims));
  } else {
    std::apply([&](auto&... field) { (get(reader, field), ...); }, fields_of(value));
  }
}

template <class T>
void get(Reader& reader, std::optional<T>& value) {
  if (reader.get<std::uint8_t>() != 0) get(reader, value.emplace());
}

template <class T>
void get(Reader& reader, std::vector<T>& values) {
  for (auto count = reader.get_length(1); count > 0; --count) get(reader, values.emplace_back());
}

void get(Reader& reader, std::vector<std::int64_t>& sizes) {
  for (auto runs = reader.get_length(sizeof(std::uint32_t) + sizeof(std::int64_t)); runs > 0; --runs) {
    const auto count = reader.get<std::uint32_t>();
    reader.expand(count);
    sizes.insert(sizes.end(), count, reader.get<std::int64_t>());
  }
}

template <class Variant>
void encode_variant(Writer& writer, const Variant& message) {
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& alternative) { put(writer, alternative); }, message);
}

template <class Variant, std::size_t index = 0>
Variant decode_variant(Reader& reader, std::size_t wanted) {
  if constexpr (index == std::variant_size_v<Variant>) {
    throw Error(ErrorCode::backend, "malformed control message (unknown message)");
  } else {
    if (index != wanted) return decode_variant<Variant, index + 1>(reader, wanted);
    std::variant_alternative_t<index, Variant> message;
    get(reader, message);
    if constexpr (requires { message.rank; }) {
      if (message.rank < 0 || message.rank >= reader.ranks())
        throw Error(ErrorCode::backend, "malformed control message (no such rank)");
    }
    return message;
  }
}

}  // namespace

void encode(Writer& writer, const UpMessage& message) {
  encode_variant(writer, message);
}
void encode(Writer& writer, const DownMessage& message) {
  encode_variant(writer, message);
}

UpMessage decode_up(Reader& reader) {
  return decode_variant<UpMessage>(reader, reader.get<std::uint8_t>());
}
DownMessage decode_down(Reader& reader) {
  return decode_variant<DownMessage>(reader, reader.get<std::uint8_t>());
}

}  // namespace kolo

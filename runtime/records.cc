#include "runtime/records.h"

#include <algorithm>

namespace kolo {
namespace {

constexpr int device_kinds = static_cast<int>(DeviceKind::cuda) + 1;
constexpr int error_codes = static_cast<int>(ErrorCode::backend) + 1;

void put(Writer& writer, const Shape& shape) {
  writer.put(static_cast<std::uint8_t>(std::min(shape.dims(), 255)));  // more than max_dims is an error anyway
  for (std::int64_t extent : shape.extents()) writer.put(extent);
}

Shape get_shape(Reader& reader) {
  std::int64_t extents[256] = {};
  const auto dims = reader.get<std::uint8_t>();
  const int sent = dims < Shape::max_dims ? dims : Shape::max_dims;
  for (int dim = 0; dim < sent; ++dim) extents[dim] = reader.get<std::int64_t>();
  return Shape(std::span<const std::int64_t>(extents, dims));
}

void put(Writer& writer, const Signature& signature) {
  writer.put(signature.kind);
  writer.put(signature.op);
  writer.put(signature.dtype);
  writer.put(signature.device);
  writer.put(signature.root);
  writer.put(signature.prescale);
  writer.put(signature.postscale);
  put(writer, signature.shape);
  writer.put(signature.detail);
}

Signature get_signature(Reader& reader) {
  Signature signature;
  signature.kind = reader.get<OpKind>(op_kind_count);
  signature.op = reader.get<ReduceOp>(reduce_op_count);
  signature.dtype = reader.get<DType>(dtype_count);
  signature.device = reader.get<DeviceKind>(device_kinds);
  signature.root = reader.get<std::int32_t>();
  signature.prescale = reader.get<double>();
  signature.postscale = reader.get<double>();
  signature.shape = get_shape(reader);
  signature.detail = reader.get_string();
  return signature;
}

void put(Writer& writer, const Failure& failure) {
  writer.put(failure.code);
  writer.put(failure.message);
}

Failure get_failure(Reader& reader) {
  const auto code = reader.get<ErrorCode>(error_codes);
  return {code, reader.get_string()};
}

void put(Writer& writer, const std::vector<std::uint32_t>& numbers) {
  writer.put(static_cast<std::uint32_t>(numbers.size()));
  for (std::uint32_t number : numbers) writer.put(number);
}

std::vector<std::uint32_t> get_numbers(Reader& reader) {
  std::vector<std::uint32_t> numbers(reader.get_length(sizeof(std::uint32_t)));
  for (auto& number : numbers) number = reader.get<std::uint32_t>();
  return numbers;
}

void put(Writer& writer, const Announcement& record) {
  writer.put(record.name);
  writer.put(static_cast<std::uint32_t>(record.variants.size()));
  for (const auto& variant : record.variants) {
    encode(writer, variant.ranks);
    put(writer, variant.signature);
    writer.put(static_cast<std::uint8_t>(variant.failure.has_value()));
    if (variant.failure) put(writer, *variant.failure);
  }
}

Announcement get_announcement(Reader& reader) {
  Announcement record{.name = reader.get_string()};
  for (auto count = reader.get_length(1); count > 0; --count) {
    Announcement::Variant variant;
    variant.ranks = decode_rank_set(reader);
    variant.signature = get_signature(reader);
    if (reader.get<std::uint8_t>() != 0) variant.failure = get_failure(reader);
    record.variants.push_back(std::move(variant));
  }
  return record;
}

void put(Writer& writer, const Ready& record) { writer.put(record.bucket); }
void put(Writer& writer, const Cut& record) {
  writer.put(record.bucket);
  put(writer, record.members);
}
void put(Writer& writer, const Retract& record) {
  writer.put(static_cast<std::uint8_t>(record.bucket.has_value()));
  if (record.bucket) {
    writer.put(*record.bucket);
  } else {
    writer.put(record.name);
  }
}
Retract get_retract(Reader& reader) {
  Retract record;
  if (reader.get<std::uint8_t>() != 0) {
    record.bucket = reader.get<BucketId>();
  } else {
    record.name = reader.get_string();
  }
  return record;
}
void put(Writer& writer, const Departed& record) {
  writer.put(record.rank);
  writer.put(static_cast<std::uint8_t>(record.abandoned));
}
Departed get_departed(Reader& reader) {
  const auto rank = reader.get<std::int32_t>();
  return {rank, reader.get<std::uint8_t>() != 0};
}
void put(Writer& writer, const Broken& record) { put(writer, record.failure); }
void put(Writer& writer, const Define& record) {
  writer.put(record.name);
  put(writer, record.signature);
}
void put(Writer& writer, const Regroup& record) {
  writer.put(static_cast<std::uint32_t>(record.buckets.size()));
  for (const auto& bucket : record.buckets) put(writer, bucket);
}
Regroup get_regroup(Reader& reader) {
  Regroup record;
  for (auto count = reader.get_length(sizeof(std::uint32_t)); count > 0; --count) {
    record.buckets.push_back(get_numbers(reader));
  }
  return record;
}
void put(Writer& writer, const Run& record) { put(writer, record.buckets); }
void put(Writer& writer, const Reject& record) {
  writer.put(record.name);
  put(writer, record.failure);
}
void put(Writer& writer, const Retracted& record) { put(writer, record.what); }

template <class Record>
void encode_variant(Writer& writer, const Record& record) {
  writer.put(static_cast<std::uint8_t>(record.index()));
  std::visit([&](const auto& alternative) { put(writer, alternative); }, record);
}

[[noreturn]] void unknown_record() {
  throw Error(ErrorCode::backend, "malformed control message (unknown record)");
}

}  // namespace

void encode(Writer& writer, const UpRecord& record) { encode_variant(writer, record); }
void encode(Writer& writer, const DownRecord& record) { encode_variant(writer, record); }

UpRecord decode_up(Reader& reader) {
  switch (reader.get<std::uint8_t>()) {
    case 0: return get_announcement(reader);
    case 1: return Ready{reader.get<BucketId>()};
    case 2: {
      const auto bucket = reader.get<BucketId>();
      return Cut{bucket, get_numbers(reader)};
    }
    case 3: return get_retract(reader);
    case 4: return get_departed(reader);
    case 5: return Broken{get_failure(reader)};
    default: unknown_record();
  }
}

DownRecord decode_down(Reader& reader) {
  switch (reader.get<std::uint8_t>()) {
    case 0: {
      auto name = reader.get_string();
      return Define{std::move(name), get_signature(reader)};
    }
    case 1: return get_regroup(reader);
    case 2: return Run{get_numbers(reader)};
    case 3: {
      auto name = reader.get_string();
      return Reject{std::move(name), get_failure(reader)};
    }
    case 4: return Retracted{get_retract(reader)};
    case 5: return get_departed(reader);
    case 6: return Broken{get_failure(reader)};
    default: unknown_record();
  }
}

}  // namespace kolo

#include "runtime/negotiation/messages.h"

#include <algorithm>

namespace kolo {
namespace {

constexpr int device_kinds = static_cast<int>(DeviceKind::cuda) + 1;
constexpr std::size_t max_sizes = 1 << 26;  // a rank's sizes of one tensor: one for each rank, and a few
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
  writer.put(static_cast<std::uint8_t>(signature.divide_by_group));
  put(writer, signature.shape);
  writer.put(signature.detail);
  writer.put(static_cast<std::uint32_t>(signature.members.size()));
  for (const GroupMember& member : signature.members) {
    writer.put(member.name);
    writer.put(member.dtype);
    put(writer, member.shape);
  }
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
  signature.divide_by_group = reader.get<std::uint8_t>() != 0;
  signature.shape = get_shape(reader);
  signature.detail = reader.get_string();
  for (auto count = reader.get_length(sizeof(std::uint32_t)); count > 0; --count) {
    GroupMember member{.name = reader.get_string(), .shape = {}};
    member.dtype = reader.get<DType>(dtype_count);
    member.shape = get_shape(reader);
    signature.members.push_back(std::move(member));
  }
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

/// Runs of equal numbers: even splits stay short whatever the number of ranks.
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

std::vector<std::int64_t> get_sizes(Reader& reader) {
  std::vector<std::int64_t> sizes;
  for (auto runs = reader.get_length(sizeof(std::uint32_t) + sizeof(std::int64_t)); runs > 0; --runs) {
    const auto count = reader.get<std::uint32_t>();
    if (count > max_sizes - sizes.size()) throw Error(ErrorCode::backend, "malformed control message (too many sizes)");
    sizes.insert(sizes.end(), count, reader.get<std::int64_t>());
  }
  return sizes;
}

void put(Writer& writer, const std::vector<SizesOfRanks>& all) {
  writer.put(static_cast<std::uint32_t>(all.size()));
  for (const auto& [tensor, ranks, sizes] : all) {
    writer.put(tensor);
    encode(writer, ranks);
    put(writer, sizes);
  }
}

std::vector<SizesOfRanks> get_sizes_of_ranks(Reader& reader) {
  std::vector<SizesOfRanks> all(reader.get_length(sizeof(TensorNumber)));
  for (auto& [tensor, ranks, sizes] : all) {
    tensor = reader.get<TensorNumber>();
    ranks = decode_rank_set(reader);
    sizes = get_sizes(reader);
  }
  return all;
}

void put(Writer& writer, const Announcement& record) {
  writer.put(record.known);
  writer.put(record.name);
  writer.put(static_cast<std::uint32_t>(record.variants.size()));
  for (const auto& variant : record.variants) {
    encode(writer, variant.ranks);
    put(writer, variant.signature);
    writer.put(static_cast<std::uint8_t>(variant.failure.has_value()));
    if (variant.failure) put(writer, *variant.failure);
  }
  put(writer, record.sizes);
}

Announcement get_announcement(Reader& reader) {
  const auto known = reader.get<TensorNumber>();
  Announcement record{.name = reader.get_string(), .known = known};
  for (auto count = reader.get_length(1); count > 0; --count) {
    Announcement::Variant variant;
    variant.ranks = decode_rank_set(reader);
    variant.signature = get_signature(reader);
    if (reader.get<std::uint8_t>() != 0) variant.failure = get_failure(reader);
    record.variants.push_back(std::move(variant));
  }
  record.sizes = get_sizes_of_ranks(reader);
  return record;
}

void put(Writer& writer, const Ready& record) {
  writer.put(record.bucket);
  put(writer, record.sizes);
}
Ready get_ready(Reader& reader) {
  const auto bucket = reader.get<BucketId>();
  return {bucket, get_sizes_of_ranks(reader)};
}
void put(Writer& writer, const SplitBucket& record) {
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
void put(Writer& writer, const Left& record) {
  writer.put(record.rank);
  writer.put(static_cast<std::uint8_t>(record.abandoned));
}
Left get_departed(Reader& reader) {
  const auto rank = reader.get<std::int32_t>();
  return {rank, reader.get<std::uint8_t>() != 0};
}
void put(Writer& writer, const GroupFailed& record) {
  put(writer, record.failure);
}
void put(Writer& writer, const DeviceFault& record) {
  put(writer, record.failure);
  writer.put(record.number);
}
DeviceFault get_fault(Reader& reader) {
  auto failure = get_failure(reader);
  return {std::move(failure), reader.get<std::uint64_t>()};
}
void put(Writer& writer, const Define& record) {
  writer.put(record.name);
  put(writer, record.signature);
}
Define get_define(Reader& reader) {
  auto name = reader.get_string();
  return {std::move(name), get_signature(reader)};
}
void put(Writer& writer, const Replan& record) {
  writer.put(static_cast<std::uint32_t>(record.defined.size()));
  for (const Define& define : record.defined) put(writer, define);
  writer.put(static_cast<std::uint32_t>(record.buckets.size()));
  for (const auto& bucket : record.buckets) put(writer, bucket);
}
Replan get_regroup(Reader& reader) {
  Replan record;
  for (auto count = reader.get_length(sizeof(std::uint32_t)); count > 0; --count)
    record.defined.push_back(get_define(reader));
  for (auto count = reader.get_length(sizeof(std::uint32_t)); count > 0; --count) {
    record.buckets.push_back(get_numbers(reader));
  }
  return record;
}
void put(Writer& writer, const Run& record) {
  put(writer, record.buckets);
  put(writer, record.sizes);
}
Run get_run(Reader& reader) {
  auto buckets = get_numbers(reader);
  return {std::move(buckets), get_sizes_of_ranks(reader)};
}
void put(Writer& writer, const Waiting& record) {
  writer.put(record.name);
}
void put(Writer& writer, const Joined& record) {
  writer.put(record.rank);
}
void put(Writer& writer, const BarrierArrived& record) {
  writer.put(record.name);
  encode(writer, record.ranks);
}
BarrierArrived get_came(Reader& reader) {
  auto name = reader.get_string();
  return {std::move(name), decode_rank_set(reader)};
}
void put(Writer& writer, const BarrierTimeout& record) {
  writer.put(record.name);
  writer.put(record.rank);
  writer.put(record.seconds);
}
BarrierTimeout get_overdue(Reader& reader) {
  BarrierTimeout record{.name = reader.get_string()};
  record.rank = reader.get<std::int32_t>();
  record.seconds = reader.get<double>();
  return record;
}
void put(Writer& writer, const BarrierDone& record) {
  writer.put(record.name);
  writer.put(static_cast<std::uint8_t>(record.failure.has_value()));
  if (record.failure) put(writer, *record.failure);
}
BarrierDone get_released(Reader& reader) {
  BarrierDone record{.name = reader.get_string(), .failure = std::nullopt};
  if (reader.get<std::uint8_t>() != 0) record.failure = get_failure(reader);
  return record;
}
void put(Writer& writer, const Reject& record) {
  writer.put(record.name);
  put(writer, record.failure);
}
void put(Writer& writer, const Retracted& record) {
  put(writer, record.what);
}

template <class Record>
void encode_variant(Writer& writer, const Record& record) {
  writer.put(static_cast<std::uint8_t>(record.index()));
  std::visit([&](const auto& alternative) { put(writer, alternative); }, record);
}

[[noreturn]] void unknown_record() {
  throw Error(ErrorCode::backend, "malformed control message (unknown record)");
}

}  // namespace

void encode(Writer& writer, const UpRecord& record) {
  encode_variant(writer, record);
}
void encode(Writer& writer, const DownRecord& record) {
  encode_variant(writer, record);
}

UpRecord decode_up(Reader& reader) {
  switch (reader.get<std::uint8_t>()) {
    case 0: return get_announcement(reader);
    case 1: return get_ready(reader);
    case 2: {
      const auto bucket = reader.get<BucketId>();
      return SplitBucket{bucket, get_numbers(reader)};
    }
    case 3: return get_retract(reader);
    case 4: return get_departed(reader);
    case 5: return GroupFailed{get_failure(reader)};
    case 6: return Waiting{reader.get_string()};
    case 7: return Joined{reader.get<std::int32_t>()};
    case 8: return get_came(reader);
    case 9: return get_overdue(reader);
    case 10: return get_fault(reader);
    default: unknown_record();
  }
}

DownRecord decode_down(Reader& reader) {
  switch (reader.get<std::uint8_t>()) {
    case 0: return get_define(reader);
    case 1: return get_regroup(reader);
    case 2: return get_run(reader);
    case 3: {
      auto name = reader.get_string();
      return Reject{std::move(name), get_failure(reader)};
    }
    case 4: return Retracted{get_retract(reader)};
    case 5: return get_departed(reader);
    case 6: return GroupFailed{get_failure(reader)};
    case 7: return Joined{reader.get<std::int32_t>()};
    case 8: return get_released(reader);
    case 9: return get_fault(reader);
    default: unknown_record();
  }
}

}  // namespace kolo

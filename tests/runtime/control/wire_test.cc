// The wire format: every record survives the way through its bytes; bytes that no rank wrote never do harm.

#include "runtime/control/wire.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <random>

#include "runtime/negotiation/messages.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace {

thread_local std::size_t allocated = 0;  // ever, by this thread

}  // namespace

// All of a program's memory, counted.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocated += bytes;
  void* const memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocated += bytes;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace kolo {
namespace {

using testing::error_text;

constexpr std::size_t most_allocated = 8 << 20;  // by what reads a message, and lets go of most of it on the way

constexpr int ranks = 200;

std::vector<UpMessage> up_records() {
  const Signature all_reduce{.kind = OpKind::all_reduce,
                             .op = ReduceOp::product,
                             .dtype = DType::bf16,
                             .device = DeviceKind::cuda,
                             .prescale = 0.5,
                             .postscale = -2,
                             .priority = -3,
                             .shape = Shape{5, 0, 1LL << 40}};
  const Signature broadcast{
      .kind = OpKind::broadcast, .dtype = DType::boolean, .root = 7, .shape = Shape{1, 2, 3, 4, 5, 6, 7, 8}};
  const Signature gathered{.kind = OpKind::all_gather,
                           .divide_by_group = true,
                           .shape = Shape{any_rows, 4},
                           .members = {{"x", DType::f16, Shape{any_rows, 4}}, {"y", DType::i8, Shape{any_rows}}}};
  const std::vector<SizesOfRanks> sizes{{7, {1, 3}, {-1, -1, 5, 5, 5, 0}}, {0, {}, {}}, {9, {2}, {1LL << 60}}};
  const Failure failure{ErrorCode::invalid_argument, "root 9 is not a rank"};
  return {Announcement{.name = "uneven", .variants = {{gathered, std::nullopt, {4}}}, .sizes = sizes, .known = 77},
          Ready{3, sizes},
          Waiting{"grad", 7},
          Joined{3},
          Overdue{"x", OpKind::broadcast, 2, 0.5, 3, true},
          Presence{"x", 2, true, true, 3, "y"},
          Announcement{"", {{Signature{.kind = OpKind::barrier}, std::nullopt, {0}}}},
          Announcement{"grad", {{all_reduce, std::nullopt, RankSet::range(0, 100)}, {broadcast, failure, {101, 103}}}},
          Announcement{std::string("nul \0 inside", 12), {}},
          Ready{0},
          Ready{0xffffffffu},
          SplitBucket{3, {}},
          SplitBucket{4, {1, 2, 0xfffffffe}},
          Retract{BucketId{12}, ""},
          Retract{std::nullopt, "grad"},
          Left{5, false, 1ull << 40},
          Left{ranks - 1, true},
          GroupFailed{failure},
          DeviceFault{failure, 7}};
}

std::vector<DownMessage> down_records() {
  const Signature signature{.kind = OpKind::broadcast, .dtype = DType::u8, .root = -1, .shape = Shape{}};
  const std::vector<SizesOfRanks> sizes{{7, {1, 3}, {2, 5, 5}}};
  return {Replan{{{5}}, {{"a", signature}, {"b", signature}}},
          Run{{1}, sizes},
          Joined{9},
          WhoHas{"x", 3},
          Forget{{1, 5}},
          Expired{"x", {ErrorCode::stalled, "not submitted by rank 2"}},
          Define{"a", signature},
          Define{std::string(300, 'x'), {}},
          Replan{{}},
          Replan{{{1, 2}, {}, {3}}},
          Run{{}},
          Run{{5, 4, 3}},
          Reject{"a", {ErrorCode::backend, ""}},
          Retracted{{BucketId{1}, ""}},
          Retracted{{std::nullopt, "b"}},
          Left{3, true},
          GroupFailed{{ErrorCode::aborted, "rank 3 left"}},
          DeviceFault{{ErrorCode::backend, "NCCL"}, 1ull << 40}};
}

TEST(Records, SurviveTheWayThroughTheirBytes) {
  Writer writer;
  for (const auto& record : up_records()) encode(writer, record);
  Reader up(writer.bytes());
  for (const auto& record : up_records()) EXPECT_EQ(decode_up(up) == record, true) << "up record " << record.index();
  EXPECT_TRUE(up.done());
  writer.clear();
  EXPECT_TRUE(writer.empty());
  for (const auto& record : down_records()) encode(writer, record);
  Reader down(writer.bytes());
  for (const auto& record : down_records())
    EXPECT_EQ(decode_down(down) == record, true) << "down record " << record.index();
  EXPECT_TRUE(down.done());
}

TEST(Records, EveryEnumeratorSurvives) {
  for (int dtype = 0; dtype < dtype_count; ++dtype) {
    for (int op = 0; op < reduce_op_count; ++op) {
      for (int kind = 0; kind < op_kind_count; ++kind) {
        const DownMessage record = Define{
            "n",
            {.kind = static_cast<OpKind>(kind), .op = static_cast<ReduceOp>(op), .dtype = static_cast<DType>(dtype)}};
        Writer writer;
        encode(writer, record);
        Reader reader(writer.bytes());
        EXPECT_EQ(decode_down(reader) == record, true);
      }
    }
  }
  for (int code = 0; code <= static_cast<int>(ErrorCode::backend); ++code) {
    Writer writer;
    encode(writer, UpMessage(GroupFailed{{static_cast<ErrorCode>(code), "m"}}));
    Reader reader(writer.bytes());
    EXPECT_EQ(std::get<GroupFailed>(decode_up(reader)).failure.code, static_cast<ErrorCode>(code));
  }
}

// What was announced of a shape with too many dimensions must not shift the records after it.
TEST(Records, ShapesWithTooManyDimensionsKeepTheMessageReadable) {
  for (int dims : {9, 44, 255, 256, 260, 300, 1000}) {
    const std::vector<std::int64_t> extents(static_cast<std::size_t>(dims), 2);
    Writer writer;
    encode(writer, UpMessage(Announcement{
                       "big", {{{.shape = Shape(extents)}, Failure{ErrorCode::invalid_argument, "dims"}, {1}}}}));
    encode(writer, UpMessage(Ready{77}));
    Reader reader(writer.bytes());
    const auto announcement = std::get<Announcement>(decode_up(reader));
    EXPECT_GT(announcement.variants.at(0).signature.shape.dims(), Shape::max_dims) << dims;
    EXPECT_EQ(announcement.variants.at(0).failure->message, "dims");
    EXPECT_EQ(std::get<Ready>(decode_up(reader)).bucket, 77u) << dims;
    EXPECT_TRUE(reader.done());
  }
}

TEST(Reader, RefusesWhatIsCutShort) {
  for (const auto& record : up_records()) {
    Writer writer;
    encode(writer, record);
    for (std::size_t size = 0; size < writer.bytes().size(); ++size) {
      const std::vector<std::byte> shorter(writer.bytes().begin(),
                                           writer.bytes().begin() + static_cast<std::ptrdiff_t>(size));
      Reader reader(shorter);
      EXPECT_EQ(error_text([&] { (void)decode_up(reader); }, ErrorCode::backend),
                "malformed control message (too short)");
    }
  }
}

TEST(Reader, RefusesUnknownEnumeratorsAndRecords) {
  const auto decode_bytes = [](std::vector<unsigned char> bytes) {
    return error_text(
        [&] {
          Reader reader(std::as_bytes(std::span(bytes)));
          (void)decode_up(reader);
        },
        ErrorCode::backend);
  };
  EXPECT_EQ(decode_bytes({99}), "malformed control message (unknown message)");
  EXPECT_EQ(decode_bytes({255, 0, 0}), "malformed control message (unknown message)");
  EXPECT_EQ(decode_bytes({5, 7, 0, 0, 0, 0}), "malformed control message (unknown enumerator)");
}

/// Many short runs that stand for many numbers each: no one of them is too long.
TEST(Reader, AShortMessageDoesNotBecomeALongOne) {
  Writer writer;
  writer.put(std::uint8_t{2});  // Run
  writer.put(std::uint32_t{0});
  writer.put(std::uint32_t{64});
  for (int tensor = 0; tensor < 64; ++tensor) {
    writer.put(std::uint32_t{0});
    encode(writer, RankSet{});
    for (const std::uint32_t part : {1U, 1U << 20}) writer.put(part);
    writer.put(std::int64_t{1});
  }
  Reader reader(writer.bytes(), 4);
  const std::size_t before = allocated;
  EXPECT_EQ(error_text([&] { (void)decode_down(reader); }, ErrorCode::backend),
            "malformed control message (too many sizes)");
  EXPECT_LT(allocated - before, most_allocated);
}

TEST(Reader, RefusesRanksThatAreNone) {
  for (const UpMessage& record :
       {UpMessage(Left{4, false}), UpMessage(Joined{-1}), UpMessage(Presence{"x", 1 << 30})}) {
    Writer writer;
    encode(writer, record);
    Reader reader(writer.bytes(), 4);
    EXPECT_EQ(error_text([&] { (void)decode_up(reader); }, ErrorCode::backend),
              "malformed control message (no such rank)");
  }
}

/// Peak of what this process has allocated would show a hostile length; so does an exception of the allocator.
TEST(Reader, HostileLengthsAllocateNothing) {
  const auto decode_with_length = [](std::uint8_t tag, std::size_t bytes_before, bool up) {
    Writer writer;
    writer.put(tag);
    for (std::size_t i = 0; i < bytes_before; ++i) writer.put(std::uint8_t{0});
    writer.put(std::uint32_t{0xffffffff});
    writer.put(std::uint64_t{0});
    Reader reader(writer.bytes());
    error_text([&] { up ? (void)decode_up(reader) : (void)decode_down(reader); }, ErrorCode::backend);
  };
  decode_with_length(0, 0, true);   // a name
  decode_with_length(0, 4, true);   // the number of variants
  decode_with_length(2, 4, true);   // members of a cut
  decode_with_length(3, 1, true);   // a retracted name
  decode_with_length(5, 1, true);   // a message
  decode_with_length(1, 0, false);  // buckets
  decode_with_length(2, 0, false);  // a run
}

TEST(Reader, ASetOfRanksStaysSmall) {
  Writer writer;
  writer.put(std::uint32_t{2});
  for (int i = 0; i < 2; ++i) {
    writer.put(std::int32_t{0});
    writer.put(std::int32_t{(1 << 22) - 1});
  }
  Reader reader(writer.bytes());
  EXPECT_EQ(error_text([&] { (void)decode_rank_set(reader); }, ErrorCode::backend),
            "malformed control message (bad range of ranks)");
  for (const auto& [first, last] : {std::pair{-1, 3}, {3, 2}, {0, 1 << 22}, {0, 0x7fffffff}}) {
    Writer one;
    one.put(std::uint32_t{1});
    one.put(std::int32_t{first});
    one.put(std::int32_t{last});
    Reader bad(one.bytes());
    EXPECT_EQ(error_text([&] { (void)decode_rank_set(bad); }, ErrorCode::backend),
              "malformed control message (bad range of ranks)");
  }
}

/// Decodes everything in `bytes`; only Error{backend} may come out. The copy on the heap lets AddressSanitizer see its
/// ends.
template <class Decode>
void decode_all(const std::vector<std::byte>& bytes, Decode decode) {
  const auto exact = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), exact.get());
  Reader reader(std::span(exact.get(), bytes.size()), ranks);
  const std::size_t before = allocated;
  try {
    while (!reader.done()) {
      const auto record = decode(reader);
      Writer again;
      encode(again, record);  // whatever was understood can be passed on
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::backend) << error.what();
  }
  EXPECT_LT(allocated - before, most_allocated);
}

TEST(Reader, RandomAndMutatedBytesAreHarmless) {
  Writer up, down;
  for (const auto& record : up_records()) encode(up, record);
  for (const auto& record : down_records()) encode(down, record);
  for (const std::uint64_t seed : testing::seeds(3000)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto draw = [&](std::size_t low, std::size_t high) {
      return std::uniform_int_distribution<std::size_t>(low, high)(random);
    };
    for (const auto* writer : {&up, &down}) {
      std::vector<std::byte> bytes(writer->bytes().begin(), writer->bytes().end());
      if (seed % 4 == 0) {
        bytes.resize(draw(0, 200));
        for (auto& byte : bytes) byte = static_cast<std::byte>(draw(0, 255) >> draw(0, 7));
      }
      for (std::size_t i = draw(1, 8); i > 0 && !bytes.empty(); --i) {
        const std::size_t at = draw(0, bytes.size() - 1);
        switch (draw(0, 3)) {
          case 0: bytes[at] = static_cast<std::byte>(draw(0, 255)); break;
          case 1: bytes[at] ^= static_cast<std::byte>(1u << draw(0, 7)); break;
          case 2: bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at)); break;
          default: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::byte>(draw(0, 255)));
        }
      }
      decode_all(bytes, [](Reader& reader) { return decode_up(reader); });
      decode_all(bytes, [](Reader& reader) { return decode_down(reader); });
    }
  }
}

}  // namespace
}  // namespace kolo

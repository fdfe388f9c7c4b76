#include "ops/chunk.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ops/introductions.h"

namespace kolo {
namespace {

// Shapes only: nobody looks at the data.
Bucket bucket_of(DType dtype, const std::vector<std::int64_t>& sizes) {
  Bucket bucket;
  bucket.signature.dtype = dtype;
  for (const std::int64_t size : sizes) {
    const Tensor tensor{nullptr, Shape{size}, dtype, {}};
    bucket.tensors.push_back({tensor, tensor});
  }
  return bucket;
}

std::vector<Chunk> chunks_of(const Bucket& bucket, const ChunkRule& rule) {
  std::vector<Chunk> chunks;
  BucketPosition position;
  for (Chunk s = chunk_at(bucket, 1, position, rule); s.count > 0; s = chunk_at(bucket, 1, s.next, rule)) {
    chunks.push_back(s);
  }
  return chunks;
}

constexpr ChunkRule rule{4096, 400};  // 1024 and 100 f32

TEST(Chunk, BigTensorsTravelAloneAndSmallOnesTogether) {
  const auto chunks = chunks_of(bucket_of(DType::f32, {10, 0, 20, 2500, 30, 40, 100, 5}), rule);
  const std::vector<std::int64_t> counts{30, 1024, 1024, 452, 70, 100, 5};
  const std::vector<bool> single{false, true, true, true, false, true, true};
  ASSERT_EQ(chunks.size(), counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(chunks[i].count, counts[i]) << i;
    EXPECT_EQ(chunks[i].single, single[i]) << i;
  }
}

TEST(Chunk, TheSmallRestOfABigTensorIsPackedWithItsNeighbours) {
  const auto chunks = chunks_of(bucket_of(DType::f32, {1030, 7}), rule);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[1].count, 13);
  EXPECT_FALSE(chunks[1].single);
  EXPECT_EQ(chunks[1].position.offset, 1024);
}

TEST(Chunk, AnEmptyBucketHasNone) {
  EXPECT_TRUE(chunks_of(bucket_of(DType::f32, {}), rule).empty());
  EXPECT_TRUE(chunks_of(bucket_of(DType::f32, {0, 0}), rule).empty());
}

TEST(Chunk, CountsFitInIntBeyondTwoToThe31) {
  const ChunkRule wide{1 << 29, 1 << 15};
  for (const DType dtype : {DType::u8, DType::f32, DType::f64}) {
    const std::vector<std::int64_t> sizes{5, (std::int64_t{1} << 31) + 3, 7, (std::int64_t{1} << 33) + 1};
    const Bucket bucket = bucket_of(dtype, sizes);
    std::int64_t sum = 0;
    for (const Chunk& chunk : chunks_of(bucket, wide)) {
      EXPECT_EQ(position_at(bucket, 1, sum).tensor, chunk.position.tensor);
      EXPECT_EQ(position_at(bucket, 1, sum).offset, chunk.position.offset);
      EXPECT_LE(chunk.count * static_cast<std::int64_t>(size_of(dtype)), wide.largest);
      sum += chunk.count;
    }
    EXPECT_EQ(sum, bucket.elements());
  }
}

TEST(ElementRange, CoversAllElementsOnce) {
  const std::int64_t huge = (std::int64_t{1} << 40) + 17;
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, std::int64_t{1000}, huge}) {
    for (const int parts : {1, 2, 3, 4, 7, 100}) {
      std::int64_t end = 0;
      for (int part = 0; part < parts; ++part) {
        const ElementRange slice = slice_of(elements, 4, parts, part);
        EXPECT_EQ(slice.begin, end);
        EXPECT_TRUE(slice.begin % 16 == 0 || slice.count() == 0);
        end = slice.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
}

TEST(Bucket, SegmentsAreTheRangeInOrder) {
  const Bucket bucket = bucket_of(DType::f32, {3, 0, 4, 5});
  std::vector<std::int64_t> seen;
  const BucketPosition end = for_each_segment(bucket, 1, position_at(bucket, 1, 2), 6, [&](const Segment& segment) {
    seen.insert(seen.end(), {static_cast<std::int64_t>(segment.tensor), segment.offset, segment.count});
  });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 2, 1, 2, 0, 4, 3, 0, 1}));
  EXPECT_EQ(end.tensor, 3u);
  EXPECT_EQ(end.offset, 1);
}

/// Says how many numbers it is given, and serves groups in which all say that.
class Talkative final : public Backend {
 public:
  explicit Talkative(std::int64_t numbers) : numbers_(numbers) {}
  std::string_view name() const override { return "talkative"; }
  bool supports(const Signature&) const override { return false; }
  std::unique_ptr<Operation> start(const Bucket&) override { return nullptr; }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}
  Introduction introduction() override { return Introduction(static_cast<std::size_t>(numbers_), numbers_); }
  bool introduce(std::span<const Introduction> members) override {
    return std::ranges::all_of(members, [&](const Introduction& said) { return said == introduction(); });
  }

 private:
  std::int64_t numbers_;
};

BackendList talkative(std::int64_t first, std::int64_t second) {
  BackendList list;
  list.push_back(std::make_unique<Talkative>(first));
  list.push_back(std::make_unique<Talkative>(second));
  return list;
}

TEST(Introductions, GoToTheirBackendsAndRemoveThoseThatServeNot) {
  BackendList mine = talkative(0, 3), agrees = talkative(0, 3), differs = talkative(2, 3);
  const Introduction said = introduction_of(mine);
  EXPECT_EQ(said, (Introduction{0, 3, 3, 3, 3}));
  const std::vector same{said, introduction_of(agrees)}, other{said, introduction_of(differs)};
  introduce(mine, same);
  EXPECT_EQ(mine.size(), 2u);
  introduce(mine, other);
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(mine.front()->introduction().size(), 3u);
}

TEST(Introductions, MalformedOnesAreErrors) {
  for (const Introduction& said : {Introduction{}, Introduction{0}, Introduction{0, 3, 3, 3}, Introduction{-1, 0}}) {
    BackendList mine = talkative(0, 3);
    const std::vector<Introduction> members(1, said);
    try {
      introduce(mine, members);
      FAIL() << "of " << said.size() << " numbers";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::backend);
      EXPECT_STREQ(error.what(), "malformed introduction (of a rank's backends)");
    }
  }
}

}  // namespace
}  // namespace kolo

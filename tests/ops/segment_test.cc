#include "ops/segment.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

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

std::vector<Segment> segments_of(const Bucket& bucket, const SegmentRule& rule) {
  std::vector<Segment> segments;
  BucketPosition position;
  for (Segment s = segment_at(bucket, 1, position, rule); s.count > 0; s = segment_at(bucket, 1, s.next, rule)) {
    segments.push_back(s);
  }
  return segments;
}

constexpr SegmentRule rule{4096, 400};  // 1024 and 100 f32

TEST(Segment, BigTensorsTravelAloneAndSmallOnesTogether) {
  const auto segments = segments_of(bucket_of(DType::f32, {10, 0, 20, 2500, 30, 40, 100, 5}), rule);
  const std::vector<std::int64_t> counts{30, 1024, 1024, 452, 70, 100, 5};
  const std::vector<bool> single{false, true, true, true, false, true, true};
  ASSERT_EQ(segments.size(), counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(segments[i].count, counts[i]) << i;
    EXPECT_EQ(segments[i].single, single[i]) << i;
  }
}

TEST(Segment, TheSmallRestOfABigTensorIsPackedWithItsNeighbours) {
  const auto segments = segments_of(bucket_of(DType::f32, {1030, 7}), rule);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[1].count, 13);
  EXPECT_FALSE(segments[1].single);
  EXPECT_EQ(segments[1].position.offset, 1024);
}

TEST(Segment, AnEmptyBucketHasNone) {
  EXPECT_TRUE(segments_of(bucket_of(DType::f32, {}), rule).empty());
  EXPECT_TRUE(segments_of(bucket_of(DType::f32, {0, 0}), rule).empty());
}

TEST(Segment, CountsFitInIntBeyondTwoToThe31) {
  const SegmentRule wide{1 << 29, 1 << 15};
  for (const DType dtype : {DType::u8, DType::f32, DType::f64}) {
    const std::vector<std::int64_t> sizes{5, (std::int64_t{1} << 31) + 3, 7, (std::int64_t{1} << 33) + 1};
    const Bucket bucket = bucket_of(dtype, sizes);
    std::int64_t sum = 0;
    for (const Segment& segment : segments_of(bucket, wide)) {
      EXPECT_EQ(position_at(bucket, 1, sum).tensor, segment.position.tensor);
      EXPECT_EQ(position_at(bucket, 1, sum).offset, segment.position.offset);
      EXPECT_LE(segment.count * static_cast<std::int64_t>(size_of(dtype)), wide.largest);
      sum += segment.count;
    }
    EXPECT_EQ(sum, bucket.elements());
  }
}

TEST(Slice, CoversAllElementsOnce) {
  const std::int64_t huge = (std::int64_t{1} << 40) + 17;
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, std::int64_t{1000}, huge}) {
    for (const int parts : {1, 2, 3, 4, 7, 100}) {
      std::int64_t end = 0;
      for (int part = 0; part < parts; ++part) {
        const Slice slice = slice_of(elements, 4, parts, part);
        EXPECT_EQ(slice.begin, end);
        EXPECT_TRUE(slice.begin % 16 == 0 || slice.count() == 0);
        end = slice.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
}

TEST(Bucket, PiecesAreTheRangeInOrder) {
  const Bucket bucket = bucket_of(DType::f32, {3, 0, 4, 5});
  std::vector<std::int64_t> seen;
  const BucketPosition end = for_each_piece(bucket, 1, position_at(bucket, 1, 2), 6, [&](const Piece& piece) {
    seen.insert(seen.end(), {static_cast<std::int64_t>(piece.tensor), piece.offset, piece.count});
  });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 2, 1, 2, 0, 4, 3, 0, 1}));
  EXPECT_EQ(end.tensor, 3u);
  EXPECT_EQ(end.offset, 1);
}

}  // namespace
}  // namespace kolo

#include "models/data/dataset.h"

#include <gtest/gtest.h>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::TempFolder;
using testing::write_file;

std::string word_of(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

/// Writes `count` images of `rows` x 1 pixels, each as its number, with their labels.
void write_set(const TempFolder& folder, const std::string& set, std::uint32_t count, std::uint32_t rows = 1,
               const std::string& suffix = "") {
  std::string images = word_of(0x803) + word_of(count) + word_of(rows) + word_of(1);
  std::string labels = word_of(0x801) + word_of(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    images += std::string(rows, static_cast<char>(i));
    labels += static_cast<char>(i % 10);
  }
  write_file(folder / (set + "-images-idx3-ubyte" + suffix), images);
  write_file(folder / (set + "-labels-idx1-ubyte" + suffix), labels);
}

std::string error(const TempFolder& folder) {
  return error_of([&] { read_digits(folder.path()); }, folder.path());
}

TEST(DigitsDir, TrainWithT10kHeldOut) {
  const TempFolder folder;
  write_set(folder, "train", 7, 1, ".gz");  // zlib reads what is not gzipped, whatever its name
  write_set(folder, "t10k", 4);
  const DataSplit split = read_digits(folder.path());
  EXPECT_EQ(split.train.count(), 7);
  EXPECT_EQ(split.held_out.count(), 4);
  EXPECT_EQ(split.description,
            fmt::format("digits of {}: 7 of train to train on, 4 of t10k held out", folder.path().string()));
}

TEST(DigitsDir, T10kAloneIsSplit) {
  const TempFolder folder;
  write_set(folder, "t10k", 10, 2);
  const DataSplit split = read_digits(folder.path());
  EXPECT_EQ(split.train.inputs, (std::vector<std::uint8_t>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}));
  EXPECT_EQ(split.train.labels, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(split.held_out.inputs, (std::vector<std::uint8_t>{8, 8, 9, 9}));
  EXPECT_EQ(split.held_out.labels, (std::vector<std::int32_t>{8, 9}));
  EXPECT_EQ(split.held_out.classes, 10);
  EXPECT_EQ(split.description,
            fmt::format("t10k digits of {}: the first 8 to train on, the last 2 held out", folder.path().string()));
}

TEST(DigitsDir, PlainFilesComeFirst) {
  const TempFolder folder;
  write_set(folder, "t10k", 10);
  write_set(folder, "t10k", 20, 1, ".gz");
  EXPECT_EQ(read_digits(folder.path()).train.count(), 8);
}

TEST(DigitsDir, OneImageIsToTrainOn) {
  const TempFolder folder;
  write_set(folder, "t10k", 1);
  EXPECT_EQ(read_digits(folder.path()).train.count(), 1);
  EXPECT_EQ(read_digits(folder.path()).held_out.count(), 0);
}

TEST(DigitsDir, FolderWithoutDigits) {
  const TempFolder folder;
  EXPECT_EQ(
      error(folder),
      "DIR has no digits to train on (looked for t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz); "
      "name a folder with MNIST's IDX files");
  write_set(folder, "train", 3);
  EXPECT_EQ(
      error(folder),
      "DIR has no digits to hold out (looked for t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz); "
      "name a folder with MNIST's IDX files");
}

TEST(DigitsDir, NoFolder) {
  const TempFolder folder;
  EXPECT_EQ(error_of([&] { read_digits(folder / "nowhere"); }, folder.path()),
            "cannot read DIR/nowhere (No such file or directory); name a folder with MNIST's IDX files");
  write_file(folder / "file", "x");
  EXPECT_EQ(error_of([&] { read_digits(folder / "file"); }, folder.path()),
            "cannot read DIR/file (it is not a folder); name a folder with MNIST's IDX files");
}

TEST(DigitsDir, HalfAPair) {
  const TempFolder folder;
  write_set(folder, "t10k", 5);
  write_set(folder, "train", 5);
  std::filesystem::remove(folder / "train-labels-idx1-ubyte");
  EXPECT_EQ(error(folder), "DIR has train-images-idx3-ubyte but not train-labels-idx1-ubyte, plain or .gz; add it");
  write_set(folder, "train", 5);
  std::filesystem::remove(folder / "t10k-images-idx3-ubyte");
  EXPECT_EQ(error(folder), "DIR has t10k-labels-idx1-ubyte but not t10k-images-idx3-ubyte, plain or .gz; add it");
}

TEST(DigitsDir, SetsOfTwoSizes) {
  const TempFolder folder;
  write_set(folder, "t10k", 5, 1);
  write_set(folder, "train", 5, 2);
  EXPECT_EQ(error(folder), "DIR has train images of 2x1 and t10k images of 1x1; give sets of one size");
}

}  // namespace
}  // namespace kolo::models

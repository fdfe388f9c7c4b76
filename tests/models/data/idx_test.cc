#include "models/data/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <random>

#include "tests/models/models_testing.h"
#include "tests/support/environment.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::TempFolder;
using testing::write_file;

std::string word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

const std::string images = word(0x803) + word(3) + word(2) + word(2) + "abcdefghijkl";
const std::string labels = word(0x801) + word(3) + std::string("\x05\x00\x09", 3);

class Idx : public ::testing::Test {
 protected:
  /// The error of reading files of these bytes.
  std::string error(const std::string& image_bytes, const std::string& label_bytes) {
    write_file(folder_ / "images", image_bytes);
    write_file(folder_ / "labels", label_bytes);
    return error_of([&] { read_idx(folder_ / "images", folder_ / "labels"); }, folder_.path());
  }

  std::string gzipped(const std::string& bytes) {
    const auto path = folder_ / "scratch.gz";
    const gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return testing::read_file(path);
  }

  TempFolder folder_;
};

TEST_F(Idx, ReadsPlainAndGzipped) {
  for (const bool zip : {false, true}) {
    write_file(folder_ / "images", zip ? gzipped(images) : images);
    write_file(folder_ / "labels", zip ? gzipped(labels) : labels);
    const Dataset data = read_idx(folder_ / "images", folder_ / "labels");
    EXPECT_EQ(data.count(), 3);
    EXPECT_EQ(data.rows, 2);
    EXPECT_EQ(data.columns, 2);
    EXPECT_EQ(data.classes, 10);
    EXPECT_EQ(std::string(data.inputs.begin(), data.inputs.end()), "abcdefghijkl");
    EXPECT_EQ(data.labels, (std::vector<std::int32_t>{5, 0, 9}));
  }
}

TEST_F(Idx, Missing) {
  EXPECT_EQ(error_of([&] { read_idx(folder_ / "images", folder_ / "labels"); }, folder_.path()),
            "cannot use DIR/images (No such file or directory); check the path and its permissions");
  write_file(folder_ / "images", images);
  EXPECT_EQ(error_of([&] { read_idx(folder_ / "images", folder_ / "labels"); }, folder_.path()),
            "cannot use DIR/labels (No such file or directory); check the path and its permissions");
  EXPECT_EQ(error_of([&] { read_idx(folder_.path(), folder_ / "labels"); }, folder_.path()),
            "cannot use DIR (it is a folder); check the path and its permissions");
}

/// Nobody writes into the pipe: whoever opens it for reading waits.
TEST_F(Idx, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  write_file(folder_ / "images", images);
  for (const auto& [of_images, of_labels] : {std::pair("pipe", "labels"), std::pair("images", "pipe")})
    EXPECT_EQ(error_of([&] { read_idx(folder_ / of_images, folder_ / of_labels); }, folder_.path()),
              "cannot use DIR/pipe (it is not a regular file); check the path and its permissions");
}

TEST_F(Idx, ForeignMagic) {
  EXPECT_EQ(
      error("\x89PNG and more", labels),
      "cannot use DIR/images (it begins with 0x89504e47, an IDX file of images with 0x00000803); give MNIST's images "
      "file, gzipped or not");
  EXPECT_EQ(
      error(labels, labels),
      "cannot use DIR/images (it begins with 0x00000801, an IDX file of images with 0x00000803); give MNIST's images "
      "file, gzipped or not");
  EXPECT_EQ(
      error(images, images),
      "cannot use DIR/labels (it begins with 0x00000803, an IDX file of labels with 0x00000801); give MNIST's labels "
      "file, gzipped or not");
}

TEST_F(Idx, Truncated) {
  EXPECT_EQ(error("", labels), "cannot use DIR/images (it ends within its header); fetch it again");
  EXPECT_EQ(error(images.substr(0, 13), labels), "cannot use DIR/images (it ends within its header); fetch it again");
  EXPECT_EQ(error(images.substr(0, 20), labels),
            "cannot use DIR/images (8 of the 12 bytes of its 3 images are missing); fetch it again");
  EXPECT_EQ(error(images, labels.substr(0, 10)),
            "cannot use DIR/labels (1 of the 3 bytes of its 3 labels are missing); fetch it again");
}

TEST_F(Idx, DamagedGzip) {
  const std::string whole = gzipped(images);
  EXPECT_EQ(error(whole.substr(0, whole.size() - 12), labels),
            "cannot use DIR/images (its gzip stream is cut off); fetch it again");
  std::string flipped = whole;
  flipped[flipped.size() - 6] ^= 1;  // the check sum
  EXPECT_EQ(error(flipped, labels),
            "cannot use DIR/images (its gzip stream is damaged: incorrect data check); fetch it again");
}

TEST_F(Idx, BytesAfterTheEnd) {
  EXPECT_EQ(error(images + "x", labels), "cannot use DIR/images (bytes follow its 3 images); fetch it again");
  EXPECT_EQ(error(images, labels + "x"), "cannot use DIR/labels (bytes follow its 3 labels); fetch it again");
}

TEST_F(Idx, ImpossibleSizes) {
  const auto header = [](std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
    return word(0x803) + word(count) + word(rows) + word(columns);
  };
  EXPECT_EQ(error(header(0, 28, 28), labels),
            "cannot use DIR/images (it holds 0 images of 28x28 pixels); give MNIST's images file, gzipped or not");
  EXPECT_EQ(error(header(3, 0, 28), labels),
            "cannot use DIR/images (it holds 3 images of 0x28 pixels); give MNIST's images file, gzipped or not");
  EXPECT_EQ(error(header(3, 28, 5000), labels),
            "cannot use DIR/images (it holds 3 images of 28x5000 pixels); give MNIST's images file, gzipped or not");
  EXPECT_EQ(
      error(header(0xffffffff, 4096, 4096), labels),  // and takes no memory for them
      "cannot use DIR/images (72057594021150720 of the 72057594021150720 bytes of its 4294967295 images are missing); "
      "fetch it again");
  const auto coloured = [](std::uint32_t count, std::uint32_t channels, std::uint32_t rows, std::uint32_t columns) {
    return word(0x804) + word(count) + word(channels) + word(rows) + word(columns);
  };
  const std::string none = word(0x801) + word(0), advice = " pixels); give MNIST's images file, gzipped or not";
  EXPECT_EQ(error(coloured(1u << 28, 4096, 4096, 4096), none),  // 2^64 bytes, and 2^64 + 2^36
            "cannot use DIR/images (it holds 268435456 images of 4096x4096x4096" + advice);
  EXPECT_EQ(error(coloured((1u << 28) + 1, 4096, 4096, 4096), none),
            "cannot use DIR/images (it holds 268435457 images of 4096x4096x4096" + advice);
  EXPECT_EQ(error(coloured(3, 1u << 31, 1u << 31, 4), none),
            "cannot use DIR/images (it holds 3 images of 2147483648x2147483648x4" + advice);
  EXPECT_EQ(error(coloured(0, 3, 2, 2), none), "cannot use DIR/images (it holds 0 images of 3x2x2" + advice);
  EXPECT_EQ(error(coloured((1u << 28) - 1, 4096, 4096, 4096), none),
            "cannot use DIR/images (18446744004990074880 of the 18446744004990074880 bytes of its 268435455 images are "
            "missing); fetch it again");
}

TEST_F(Idx, LabelsThatDoNotFit) {
  EXPECT_EQ(error(images, word(0x801) + word(0)),
            "cannot use DIR/labels (it holds 0 labels for 3 images); give the labels that belong to the images");
  EXPECT_EQ(error(images, word(0x801) + word(2) + std::string(2, '\0')),
            "cannot use DIR/labels (it holds 2 labels for 3 images); give the labels that belong to the images");
}

TEST_F(Idx, ClassesComeFromTheLabels) {
  const auto classes = [&](const std::string& of_images) {
    EXPECT_EQ(error(images, word(0x801) + word(3) + of_images), "no error");
    return read_idx(folder_ / "images", folder_ / "labels").classes;
  };
  EXPECT_EQ(classes({'\1', '\xff', '\2'}), 256);
  EXPECT_EQ(classes({'\0', '\1', '\1'}), 2);
  const auto put = [&](const std::string& set, const std::string& of_images) {
    write_file(folder_ / (set + "-images-idx3-ubyte"), images);
    write_file(folder_ / (set + "-labels-idx1-ubyte"), word(0x801) + word(3) + of_images);
  };
  put("train", {'\0', '\1', '\2'});
  put("t10k", {'\0', '\7', '\2'});
  const DataSplit split = read_digits(folder_.path());
  EXPECT_EQ(split.train.classes, 8) << "also those that only held-out images have";
  EXPECT_EQ(split.held_out.classes, 8);
}

TEST_F(Idx, RandomDamageNeverCrashes) {
  const std::string coloured = word(0x804) + word(3) + word(3) + word(2) + word(2) + std::string(36, 'c');
  const std::vector<std::string> sound{images, gzipped(images), coloured, gzipped(coloured)};
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937 random(seed);
    std::string bytes = sound[seed % sound.size()];
    for (std::uint32_t i = 0; i <= seed % 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (seed % 5 == 0) bytes.resize(random() % bytes.size());
    const std::string text = error(bytes, labels);
    ASSERT_TRUE(text == "no error" || text.starts_with("cannot use DIR/")) << text;
  }
}

TEST_F(Idx, RealDigits) {
  const auto shared = testing::shared_dir();
  if (shared.empty()) GTEST_SKIP() << "no data on this machine (KOLO_SHARED_DIR)";
  const Dataset data = read_idx(shared / "data/t10k-images-idx3-ubyte.gz", shared / "data/t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(data.count(), 10000);
  EXPECT_EQ(data.input_size(), 784);
  EXPECT_EQ(std::vector(data.labels.begin(), data.labels.begin() + 5), (std::vector<std::int32_t>{7, 2, 1, 0, 4}));
}

}  // namespace
}  // namespace kolo::models

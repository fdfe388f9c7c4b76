#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kolo::models {

/// Labelled images in memory, one byte per input: 0 … 255 stands for 0 … 1.
struct Dataset {
  std::int64_t channels = 1;  ///< planes of an image: 1 for grey, 3 for colours
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int32_t classes = 0;          ///< the largest label of the data and one
  std::vector<std::uint8_t> inputs;  ///< [count, channels·rows·columns]
  std::vector<std::int32_t> labels;  ///< [count], each in 0 … classes-1

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t input_size() const { return channels * rows * columns; }
};

/// A training set and a held-out set, which may be empty.
struct DataSplit {
  Dataset train;
  Dataset held_out;
  std::string description;  ///< for output: the source, and how it was split
};

/// Reads a pair of IDX files, as MNIST's: images (magic 0x00000803, count, rows, columns, one byte per pixel; or, in
/// colours, 0x00000804, count, channels, rows, columns, plane by plane) and labels (magic 0x00000801, count, one byte
/// each). Either may be gzipped, under any name.
///
/// Errors: ModelError naming the file and the reason: missing or unreadable, damaged gzip, foreign magic, no images or
/// images without pixels, truncated, bytes after the end, as many labels as images not given.
/// Memory grows with what is really in the file, not with what its header promises.
Dataset read_idx(const std::filesystem::path& images, const std::filesystem::path& labels);

/// Reads MNIST's files from a folder, each plain or with ".gz" behind its name (plain first):
/// train-images-idx3-ubyte and train-labels-idx1-ubyte to train on, with t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte held out; without the train files the first four fifths of t10k (8 000 of MNIST's 10 000) to
/// train on and the rest held out.
///
/// Errors: ModelError if the folder has not these files (says what was looked for), has half a pair, or if the two
/// image sizes differ; and as read_idx.
DataSplit read_digits(const std::filesystem::path& folder);

struct RenderedSettings {
  std::int64_t train = 8000;
  std::int64_t held_out = 2000;
  std::uint64_t seed = 1;  ///< of the pictures; held-out ones are never among those to train on
};

/// Renders digits, 28×28: several glyphs for each, with random distortion, size, slant, rotation, shift, stroke width,
/// ink and noise. Picture i uses Random(seed, i) and no trigonometry, so the bytes are the same on every platform.
/// About 40 µs a picture.
DataSplit render_digits(const RenderedSettings& settings = {});

}  // namespace kolo::models

#pragma once

#include <filesystem>

#include "models/data/dataset.h"

namespace kolo::models {

/// Reads a pair of IDX files, as MNIST's: images (magic 0x00000803, count, rows, columns, one byte per pixel; or, in
/// colours, 0x00000804, count, channels, rows, columns, plane by plane) and labels (magic 0x00000801, count, one byte
/// each), each gzipped or not, whatever their names say.
///
/// Errors: ModelError naming the file and the reason: missing or unreadable, damaged gzip, foreign magic, no images or
/// images without pixels, truncated, bytes after the end, as many labels as images not given, a label that is no digit.
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

}  // namespace kolo::models

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

}  // namespace kolo::models

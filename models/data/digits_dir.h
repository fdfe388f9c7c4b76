#pragma once

#include <filesystem>

#include "models/data/dataset.h"

namespace kolo::models {

/// Reads MNIST's files from a folder, each plain or with ".gz" behind its name (plain first):
/// train-images-idx3-ubyte and train-labels-idx1-ubyte to train on, with t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte held out; without the train files the first four fifths of t10k (8 000 of MNIST's 10 000) to
/// train on and the rest held out.
///
/// Errors: ModelError if the folder has not these files (says what was looked for), has half a pair, or if the two
/// image sizes differ; and as read_idx.
DataSplit read_digits(const std::filesystem::path& folder);

}  // namespace kolo::models

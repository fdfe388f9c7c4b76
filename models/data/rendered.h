#pragma once

#include <cstdint>

#include "models/data/dataset.h"

namespace kolo::models {

struct RenderedSettings {
  std::int64_t train = 8000;
  std::int64_t held_out = 2000;
  std::uint64_t seed = 1;  ///< of the pictures; held-out ones are never among those to train on
};

/// Digits that the program draws itself, 28×28: several ways to write each, with wobbling outlines, size, slant, turn,
/// shift, stroke width, ink and noise at random. Picture i takes its numbers from Random(seed, i) and no trigonometry,
/// so that the bytes are the same on every platform. About 40 µs a picture.
DataSplit render_digits(const RenderedSettings& settings = {});

}  // namespace kolo::models

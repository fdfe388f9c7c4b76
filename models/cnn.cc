#include "models/cnn.h"

#include <fmt/format.h>

#include <utility>

#include "models/layers/images.h"
#include "models/layers/linear.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

const CnnSettings& checked(const CnnSettings& settings) {
  constexpr std::int64_t largest = 1 << 16;  // keeps every product of three far from overflow
  struct Size {
    const char* name;
    std::int64_t value, least;
  };
  for (const auto& [name, size, least] : {Size{"channels", settings.channels, 1},
                                          {"rows", settings.height, 4},
                                          {"columns", settings.width, 4},
                                          {"filters", settings.filters, 1},
                                          {"hidden units", settings.dense, 1},
                                          {"classes", settings.classes, 1}}) {
    if (size >= least && size <= largest) continue;
    throw ModelError(fmt::format("a CNN cannot have {} {} ({} to {}); say --channels 1 --filters 32 --dense 64", size,
                                 name, least, largest));
  }
  return settings;
}

}  // namespace

Cnn::Cnn(const CnnSettings& settings, Precision precision, ReduceFn reduce)
    : LayeredModel({.image = {settings.channels, settings.height, settings.width}}, precision),
      settings_(checked(settings)) {
  const std::int64_t pooled = (settings.height - 2) / 2 * ((settings.width - 2) / 2);
  const Activation of_convolution = settings.batch_norm ? Activation::none : Activation::relu;
  add<Conv2d>("conv1", settings.channels, settings.filters, Conv2dOptions{.activation = of_convolution});
  if (settings.batch_norm) add<BatchNorm>("bn1", settings.filters, std::move(reduce), Activation::relu);
  add<MaxPool>();
  add<Linear>("dense1", settings.filters * pooled, settings.dense, Activation::relu);
  add<Linear>("dense2", settings.dense, settings.classes);
  end<CrossEntropy>(settings.classes);
}

}  // namespace kolo::models

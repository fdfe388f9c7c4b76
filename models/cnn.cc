#include "models/cnn.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "models/layers/images.h"
#include "models/layers/linear.h"
#include "models/registry.h"
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

Cnn::Cnn(const CnnSettings& settings, Precision precision, ReduceFn reduce, Device device)
    : LayeredModel({.image = {settings.channels, settings.height, settings.width}}, precision, device),
      settings_(checked(settings)) {
  const std::int64_t pooled = (settings.height - 2) / 2 * ((settings.width - 2) / 2);
  const Conv2dOptions convolution{.activation = Activation::relu, .pooling = {.window = 2}};
  if (settings.batch_norm) {
    add<NormedConv2d>("conv1", "bn1", settings.channels, settings.filters, convolution, std::move(reduce));
  } else {
    add<Conv2d>("conv1", settings.channels, settings.filters, convolution);
  }
  add<Linear>("dense1", settings.filters * pooled, settings.dense, Activation::relu);
  add<Linear>("dense2", settings.dense, settings.classes);
  end<CrossEntropy>(settings.classes);
}

namespace {

std::unique_ptr<Model> make_cnn(const ModelSettings& settings) {
  const CnnSettings& sizes = settings.cnn;
  const std::int64_t inputs = sizes.channels * sizes.height * sizes.width;
  auto model = std::make_unique<Cnn>(sizes, settings.precision, settings.reduce, settings.device);
  if ((settings.inputs == 0 || settings.inputs == inputs) && settings.classes <= sizes.classes) return model;
  throw ModelError(
      fmt::format("a cnn of {} x {} x {} inputs and {} classes does not fit the data ({} inputs and {} classes); give "
                  "it the data's "
                  "--channels",
                  sizes.channels, sizes.height, sizes.width, sizes.classes, settings.inputs, settings.classes));
}

/// The convolution, which is the first layer, computes no gradient of its input.
double flops_of_cnn(const Model& model, const ModelSettings& settings, std::int64_t) {
  const auto places = static_cast<double>((settings.cnn.height - 2) * (settings.cnn.width - 2));
  const auto filters = static_cast<double>(model.parameters().front().shape.elements());
  return 4 * filters * places + 6 * matrix_elements(model);
}

template <auto size>
auto& cnn_field(ModelSettings& settings) {
  return settings.cnn.*size;
}

}  // namespace

ModelKind cnn_kind() {
  return {.name = "cnn",
          .data = DataKind::images,
          .make = make_cnn,
          .flags = {{.name = "filters",
                     .doc = "output channels of the convolution (default: 32)",
                     .field = &cnn_field<&CnnSettings::filters>},
                    {.name = "dense",
                     .doc = "width of the hidden layer (default: 64)",
                     .field = &cnn_field<&CnnSettings::dense>},
                    {.name = "channels",
                     .doc = "input channels (default: those of the data)",
                     .field = &cnn_field<&CnnSettings::channels>},
                    {.name = "sync-batch-norm",
                     .doc = "batch normalisation after the convolution, with statistics over all ranks",
                     .field = &cnn_field<&CnnSettings::batch_norm>,
                     .otherwise = "no normalisation"}},
          .fit = [](ModelSettings& settings) { settings.cnn.classes = settings.classes; },
          .reduces = [](const ModelSettings& settings) { return settings.cnn.batch_norm; },
          .flops = flops_of_cnn};
}

}  // namespace kolo::models

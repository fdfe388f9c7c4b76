#include "models/mlp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "models/layers/linear.h"
#include "models/registry.h"
#include "models/util/error.h"

namespace kolo::models {

Mlp::Mlp(std::vector<std::int64_t> sizes, Precision precision, Device device)
    : LayeredModel({.image = {sizes.empty() ? 0 : sizes.front()}}, precision, device), sizes_(std::move(sizes)) {
  if (sizes_.size() < 2) throw ModelError("an MLP needs at least two sizes (inputs and outputs); say 784,1024,1024,10");
  const std::size_t last = sizes_.size() - 2;
  for (std::size_t i = 0; i <= last; ++i) {
    add<Linear>(fmt::format("layers.{}", i), sizes_[i], sizes_[i + 1], i == last ? Activation::none : Activation::relu);
  }
  end<CrossEntropy>(sizes_.back());
}

namespace {

std::vector<std::int64_t> sizes_of(const ModelSettings& settings) {
  if (!settings.sizes.empty()) return settings.sizes;
  return {settings.inputs, 1024, 1024, settings.classes};
}

std::unique_ptr<Model> make_mlp(const ModelSettings& settings) {
  auto model = std::make_unique<Mlp>(sizes_of(settings), settings.precision, settings.device);
  const std::int64_t inputs = model->sizes().front(), classes = model->sizes().back();
  if ((settings.inputs == 0 || settings.inputs == inputs) && settings.classes <= classes) return model;
  throw ModelError(fmt::format(
      "sizes {} do not fit the data ({} inputs and {} classes); the first size must be {}, the last at least {}",
      fmt::join(model->sizes(), ","), settings.inputs, settings.classes, settings.inputs, settings.classes));
}

/// Forward, the gradient of the weight, and that of the input, which the first layer has not.
double flops_of_mlp(const Model& model, const ModelSettings&, std::int64_t) {
  return 6 * matrix_elements(model) - 2 * static_cast<double>(model.parameters().front().shape.elements());
}

}  // namespace

ModelKind mlp_kind() {
  return {.name = "mlp",
          .data = DataKind::images,
          .make = make_mlp,
          .flags = {{.name = "sizes",
                     .doc = "layer widths, input first (default: the data's inputs,1024,1024,the data's classes)",
                     .field = [](ModelSettings& of) -> std::vector<std::int64_t>& { return of.sizes; },
                     .accepts = "the width of each layer, such as 784,1024,1024,10"}},
          .fit = [](ModelSettings& settings) { settings.sizes = sizes_of(settings); },
          .flops = flops_of_mlp};
}

}  // namespace kolo::models

#include "models/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/cnn.h"
#include "models/llama/llama.h"
#include "models/mlp.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

void check_no_recompute(std::string_view name, const ModelSettings& settings) {
  if (!settings.recompute) return;
  throw ModelError(
      fmt::format("recomputation is for llama (a step of {} keeps little that could be computed again); "
                  "leave --recompute out",
                  name));
}

std::unique_ptr<Model> make_mlp(const ModelSettings& settings) {
  check_no_recompute("mlp", settings);
  auto model = std::make_unique<Mlp>(
      settings.sizes.empty() ? std::vector<std::int64_t>{784, 1024, 1024, 10} : settings.sizes, settings.precision);
  const std::int64_t inputs = model->sizes().front(), classes = model->sizes().back();
  if ((settings.inputs == 0 || settings.inputs == inputs) && settings.classes <= classes) return model;
  throw ModelError(fmt::format(
      "sizes {} do not fit the data ({} inputs and {} classes); the first size must be {}, the last at least {}",
      fmt::join(model->sizes(), ","), settings.inputs, settings.classes, settings.inputs, settings.classes));
}

std::unique_ptr<Model> make_cnn(const ModelSettings& settings) {
  check_no_recompute("cnn", settings);
  const CnnSettings& sizes = settings.cnn;
  const std::int64_t inputs = sizes.channels * sizes.height * sizes.width;
  auto model = std::make_unique<Cnn>(sizes, settings.precision, settings.reduce);
  if ((settings.inputs == 0 || settings.inputs == inputs) && settings.classes <= sizes.classes) return model;
  throw ModelError(
      fmt::format("a cnn of {} x {} x {} inputs and {} classes does not fit the data ({} inputs and {} classes); give "
                  "it the data's "
                  "--channels",
                  sizes.channels, sizes.height, sizes.width, sizes.classes, settings.inputs, settings.classes));
}

std::unique_ptr<Model> make_llama(const ModelSettings& settings) {
  return std::make_unique<Llama>(settings.llama, settings.precision, settings.recompute);
}

}  // namespace

std::span<const ModelKind> model_kinds() {
  static const std::vector<ModelKind> kinds{{.name = "cnn", .data = DataKind::images, .make = make_cnn},
                                            {.name = "llama",
                                             .data = DataKind::tokens,
                                             .make = make_llama,
                                             .recipe = {.epochs = 1,
                                                        .batch = 8,
                                                        .optimizer = "adamw",
                                                        .adam_lr = 2e-3,
                                                        .beta2 = 0.95,
                                                        .weight_decay = 0.1,
                                                        .schedule = Curve::cosine,
                                                        .warmup = 60,
                                                        .clip = 1}},
                                            {.name = "mlp", .data = DataKind::images, .make = make_mlp}};
  return kinds;
}

std::vector<std::string_view> known_models() {
  std::vector<std::string_view> names;
  for (const ModelKind& kind : model_kinds()) names.push_back(kind.name);
  return names;
}

std::vector<std::string_view> known_models(DataKind data) {
  std::vector<std::string_view> names;
  for (const ModelKind& kind : model_kinds()) {
    if (kind.data == data) names.push_back(kind.name);
  }
  return names;
}

const ModelKind& kind_of(std::string_view name) {
  return model_kinds()[index_of(name, known_models(), "model")];
}

std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings) {
  return kind_of(name).make(settings);
}

}  // namespace kolo::models

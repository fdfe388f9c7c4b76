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

std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings) {
  constexpr std::array<std::unique_ptr<Model> (*)(const ModelSettings&), known_models.size()> make{make_cnn, make_llama,
                                                                                                   make_mlp};
  return make[index_of(name, known_models, "model")](settings);
}

void check_known(std::string_view name) {
  (void)index_of(name, known_models, "model");
}

}  // namespace kolo::models

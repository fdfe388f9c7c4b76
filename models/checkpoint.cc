#include "models/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"
#include "models/text.h"

namespace kolo::models {
namespace {

std::string shape_text(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

bool same_shape(std::span<const std::uint64_t> stored, const Shape& shape) {
  return std::ranges::equal(stored, shape.extents(), {}, {},
                            [](std::int64_t e) { return static_cast<std::uint64_t>(e); });
}

/// A list for one line: of many names the first few.
class Names {
 public:
  explicit Names(std::string_view what) : text_(what) {}
  void add(const std::string& name) {
    constexpr int most = 4;
    if (++count_ <= most) text_ += (count_ == 1 ? " " : ", ") + name;
    if (count_ == most + 1) text_ += ", ...";
  }
  void append_to(std::vector<std::string>& parts) const {
    if (count_ > 0) parts.push_back(text_);
  }

 private:
  std::string text_;
  int count_ = 0;
};

void check_fit(const SafetensorsFile& file, std::span<const Parameter> parameters) {
  Names missing("missing:"), wrong("wrong shape:"), extra("not in the model:");
  for (const Parameter& parameter : parameters) {
    const StoredTensor* const stored = file.find(parameter.name);
    if (stored == nullptr) {
      missing.add(in_quotes(parameter.name));
    } else if (!same_shape(stored->shape, parameter.shape)) {
      wrong.add(fmt::format("{} is {} instead of [{}]", in_quotes(parameter.name), shape_text(stored->shape),
                            fmt::join(parameter.shape.extents(), ",")));
    }
  }
  for (const StoredTensor& stored : file.tensors()) {
    if (std::ranges::find(parameters, stored.name, &Parameter::name) == parameters.end())
      extra.add(in_quotes(stored.name));
  }
  std::vector<std::string> parts;
  for (const Names* names : {&missing, &wrong, &extra}) names->append_to(parts);
  if (parts.empty()) return;
  throw ModelError(fmt::format("{} does not fit the model ({}); give a file of this model's parameters",
                               file.path().string(), fmt::join(parts, "; ")));
}

}  // namespace

void load_parameters(const SafetensorsFile& file, const Model& model) {
  check_fit(file, model.parameters());
  for (const Parameter& parameter : model.parameters()) {
    file.read(*file.find(parameter.name), parameter.value);
    const auto bad = std::ranges::count_if(parameter.value, [](float number) { return !std::isfinite(number); });
    if (bad == 0) continue;
    throw ModelError(fmt::format(
        "{} holds numbers that are infinite or none at all ({} of the {} of {}); give a file of sound parameters",
        file.path().string(), bad, parameter.value.size(), in_quotes(parameter.name)));
  }
}

void save_parameters(const std::filesystem::path& path, const Model& model) {
  std::vector<NamedValues> tensors;
  for (const Parameter& parameter : model.parameters()) {
    tensors.push_back({parameter.name, parameter.shape, parameter.value});
  }
  write_safetensors(path, tensors);
}

std::vector<std::int64_t> mlp_sizes(const SafetensorsFile& file) {
  std::vector<std::int64_t> sizes;
  for (std::size_t layer = 0;; ++layer) {
    const StoredTensor* const weight = file.find(fmt::format("layers.{}.weight", layer));
    if (weight == nullptr) break;
    const bool chained =
        weight->shape.size() == 2 && (sizes.empty() || static_cast<std::uint64_t>(sizes.back()) == weight->shape[1]);
    if (!chained) {
      throw ModelError(fmt::format("{} holds no MLP ({} has shape {}{}); give a file of an MLP's parameters",
                                   file.path().string(), in_quotes(weight->name), shape_text(weight->shape),
                                   sizes.empty() ? "" : fmt::format(" behind a layer of {} units", sizes.back())));
    }
    if (sizes.empty()) sizes.push_back(static_cast<std::int64_t>(weight->shape[1]));
    sizes.push_back(static_cast<std::int64_t>(weight->shape[0]));
  }
  if (!sizes.empty()) return sizes;
  throw ModelError(fmt::format("{} holds no MLP (there is no 'layers.0.weight'); give a file of an MLP's parameters",
                               file.path().string()));
}

}  // namespace kolo::models

#include "models/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "models/util/error.h"

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

/// Reads the tensor without keeping it: one that cannot be used is found before any value is touched.
void check_finite(const Found& found, const Parameter& parameter) {
  std::vector<float> numbers(static_cast<std::size_t>(parameter.shape.elements()));
  found.file->read(*found.tensor, numbers);
  const auto bad = std::ranges::count_if(numbers, [](float number) { return !std::isfinite(number); });
  if (bad == 0) return;
  throw ModelError(
      fmt::format("{} holds numbers that are infinite or NaN ({} of the {} of {}); give a file of sound parameters",
                  found.file->path().string(), bad, numbers.size(), in_quotes(parameter.name)));
}

}  // namespace

void check_tensors(std::span<const StoredTensor> stored, const std::filesystem::path& path,
                   std::span<const Parameter> parameters, const std::function<bool(std::string_view)>& ignored) {
  Names missing("missing:"), wrong("wrong shape:"), extra("not in the model:"), twice("in two files:");
  std::map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : stored) {
    if (!by_name.emplace(tensor.name, &tensor).second) twice.add(in_quotes(tensor.name));
  }
  std::set<std::string_view> known;
  for (const Parameter& parameter : parameters) {
    known.insert(parameter.name);
    const auto found = by_name.find(parameter.name);
    if (found == by_name.end()) {
      missing.add(in_quotes(parameter.name));
    } else if (!same_shape(found->second->shape, parameter.shape)) {
      wrong.add(fmt::format("{} is {} instead of [{}]", in_quotes(parameter.name), shape_text(found->second->shape),
                            fmt::join(parameter.shape.extents(), ",")));
    }
  }
  for (const StoredTensor& tensor : stored) {
    if (!known.contains(tensor.name) && !(ignored && ignored(tensor.name))) extra.add(in_quotes(tensor.name));
  }
  std::vector<std::string> parts;
  for (const Names* names : {&missing, &wrong, &extra, &twice}) names->append_to(parts);
  if (parts.empty()) return;
  throw ModelError(fmt::format("{} does not fit the model ({}); give a file of this model's parameters", path.string(),
                               fmt::join(parts, "; ")));
}

void load_parameters(const SafetensorsFile& file, Model& model) {
  load_parameters({&file, 1}, file.path(), model);
}

Found find_in(std::span<const SafetensorsFile> files, std::string_view name) {
  for (const SafetensorsFile& file : files) {
    if (const StoredTensor* const tensor = file.find(name)) return {&file, tensor};
  }
  return {};
}

void load_parameters(std::span<const SafetensorsFile> files, const std::filesystem::path& path, Model& model,
                     const std::function<bool(std::string_view)>& ignored) {
  std::vector<StoredTensor> stored;
  for (const SafetensorsFile& file : files) stored.insert(stored.end(), file.tensors().begin(), file.tensors().end());
  check_tensors(stored, path, model.parameters(), ignored);
  for (const Parameter& parameter : model.parameters()) check_finite(find_in(files, parameter.name), parameter);
  for (const Parameter& parameter : model.parameters()) {
    const Found found = find_in(files, parameter.name);
    OnHost value(model.compute(), parameter.value);
    found.file->read(*found.tensor, value.floats());
    value.put_back();
  }
}

HostValues::HostValues(Model& model) {
  for (const Parameter& parameter : model.parameters()) {
    const OnHost& value = memory_.emplace_back(model.compute(), parameter.value);
    named_.push_back({parameter.name, parameter.shape, value.floats()});
  }
}

void save_parameters(const std::filesystem::path& path, Model& model) {
  write_safetensors(path, HostValues(model).all());
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

CnnSettings cnn_sizes(const SafetensorsFile& file, CnnSettings given) {
  const auto extents = [&](std::string_view name, std::size_t dims) {
    const StoredTensor* const tensor = file.find(name);
    constexpr std::uint64_t largest = std::uint64_t{1} << 40;
    if (tensor != nullptr && tensor->shape.size() == dims &&
        std::ranges::all_of(tensor->shape, [](std::uint64_t e) { return e >= 1 && e < largest; })) {
      return std::vector<std::int64_t>(tensor->shape.begin(), tensor->shape.end());
    }
    throw ModelError(fmt::format("{} holds no CNN ({} {}); give a file of a CNN's parameters", file.path().string(),
                                 in_quotes(name),
                                 tensor == nullptr ? "is missing" : "has shape " + shape_text(tensor->shape)));
  };
  const auto filter = extents("conv1.weight", 4), dense = extents("dense1.weight", 2),
             last = extents("dense2.weight", 2);
  given.filters = filter[0];
  given.channels = filter[1];
  given.dense = dense[0];
  given.classes = last[0];
  given.batch_norm = given.batch_norm || file.find("bn1.weight") != nullptr;
  const std::int64_t places = dense[1] / given.filters;
  if ((given.height - 2) / 2 * ((given.width - 2) / 2) == places) return given;
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(places))));
  given.height = given.width = 2 * side + 2;
  return given;
}

}  // namespace kolo::models

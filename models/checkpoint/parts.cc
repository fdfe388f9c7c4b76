#include "models/checkpoint/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "models/checkpoint/checkpoint.h"
#include "models/compute/views.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

std::string value_name(const Parameter& parameter) {
  return "value." + parameter.name;
}

CutTensor cut(std::string name, const Shape& shape, std::size_t parts) {
  const auto extents = shape.extents();
  return {std::move(name),
          {extents.begin(), extents.end()},
          even_cuts(static_cast<std::uint64_t>(shape.elements()), parts)};
}

/// Numbers of a tensor in a file that are infinite or NaN.
std::uint64_t not_finite(const SafetensorsFile& file, const StoredTensor& tensor, std::uint64_t elements) {
  std::vector<float> piece(std::min<std::uint64_t>(elements, 1 << 18));
  std::uint64_t found = 0;
  for (std::uint64_t first = 0; first < elements; first += piece.size()) {
    const auto numbers = std::span(piece).first(std::min<std::uint64_t>(piece.size(), elements - first));
    file.read_range(tensor, first, numbers);
    found +=
        static_cast<std::uint64_t>(std::ranges::count_if(numbers, [](float number) { return !std::isfinite(number); }));
  }
  return found;
}

}  // namespace

std::vector<CutTensor> cut_tensors(const Model& model, Optimizer& optimizer, std::size_t parts) {
  std::vector<CutTensor> tensors;
  for (const Parameter& parameter : model.parameters())
    tensors.push_back(cut(value_name(parameter), parameter.shape, parts));
  for (const OptimizerTensor& tensor : optimizer.state())
    tensors.push_back(cut(tensor.name, model.parameters()[tensor.parameter].shape, parts));
  return tensors;
}

void Snapshot::copy(std::span<const CutTensor> tensors, std::size_t part, Model& model, Optimizer& optimizer) {
  pieces_.resize(tensors.size());
  std::size_t next = 0;
  const auto take = [&](Compute& compute, const Tensor& values) {
    const CutTensor& tensor = tensors[next];
    AlignedFloats& piece = pieces_[next++];
    piece.resize(tensor.count(part));
    const auto count = static_cast<std::int64_t>(piece.size());
    const bool whole = values.elements() == static_cast<std::int64_t>(tensor.cuts.back());
    if (!whole && values.elements() != count)
      throw ModelError(fmt::format("{} has {} of {} elements", tensor.name, values.elements(), count));
    const auto first = whole ? static_cast<std::int64_t>(tensor.first(part)) : 0;
    if (count > 0) compute.read(part_of(values, first, {count}), piece.data());
  };
  for (const Parameter& parameter : model.parameters()) take(model.compute(), parameter.value);
  for (const OptimizerTensor& tensor : optimizer.state()) take(optimizer.compute(), tensor.values);
}

Seal write_part(const fs::path& folder, std::span<const CutTensor> tensors, const Part& part,
                const Snapshot& snapshot) {
  std::vector<NamedValues> named;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const float> piece = snapshot.pieces()[i];
    if (!piece.empty()) named.push_back({tensors[i].name, Shape{static_cast<std::int64_t>(piece.size())}, piece});
  }
  return write_safetensors(folder / file_of(part), named);
}

StoredParts::StoredParts(fs::path folder, Manifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)) {
  std::ranges::sort(manifest_.tensors, {}, &CutTensor::name);
}

fs::path StoredParts::path_of(std::size_t part) const {
  return folder_ / file_of({part, manifest_.parts.size()});
}

std::optional<std::string> StoredParts::problem_of(std::size_t part) {
  try {
    if (auto problem = problem_of_file(path_of(part), manifest_.parts[part])) return problem;
    const SafetensorsFile& stored = file(part);
    std::size_t found = 0;
    for (const CutTensor& tensor : manifest_.tensors) {
      if (tensor.count(part) == 0) continue;
      const StoredTensor* const piece = stored.find(tensor.name);
      if (piece == nullptr || piece->dtype != "F32" || piece->end - piece->begin != tensor.count(part) * sizeof(float))
        return fmt::format("{} and {} disagree about {}", path_of(part).filename().string(), manifest_file,
                           in_quotes(tensor.name));
      ++found;
      if (const std::uint64_t bad = not_finite(stored, *piece, tensor.count(part)); bad > 0)
        return fmt::format("{} of the numbers of {} in {} are infinite or NaN", bad, in_quotes(tensor.name),
                           path_of(part).filename().string());
    }
    if (found == stored.tensors().size()) return std::nullopt;
    return fmt::format("{} has tensors that {} lacks", path_of(part).filename().string(), manifest_file);
  } catch (const std::bad_alloc&) {  // says nothing of the checkpoint
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

void StoredParts::check_fit(const Model& model) const {
  const std::string_view value = "value.";
  std::vector<StoredTensor> values;
  for (const CutTensor& tensor : manifest_.tensors) {
    if (tensor.name.starts_with(value)) values.push_back({tensor.name.substr(value.size()), "F32", tensor.shape});
  }
  check_tensors(values, folder_, model.parameters());
}

void StoredParts::check_fit(const Model& model, Optimizer& optimizer) const {
  check_fit(model);
  for (const OptimizerTensor& tensor : optimizer.state()) {
    const Shape& shape = model.parameters()[tensor.parameter].shape;
    const CutTensor* const stored = find(tensor.name);
    if (stored != nullptr && stored->cuts.back() == static_cast<std::uint64_t>(shape.elements())) continue;
    throw ModelError(fmt::format("{} has no {} of shape {}; resume with the optimizer that wrote it", folder_.string(),
                                 in_quotes(tensor.name), to_string(shape)));
  }
}

void StoredParts::read_values(Model& model) {
  for (const Parameter& parameter : model.parameters())
    read(value_name(parameter), 0, model.compute(), parameter.value);
}

void StoredParts::read_state(Optimizer& optimizer, std::span<const Shard> shards) {
  for (const OptimizerTensor& tensor : optimizer.state())
    read(tensor.name, shards[tensor.parameter].first, optimizer.compute(), tensor.values);
}

const SafetensorsFile& StoredParts::file(std::size_t part) {
  return files_.try_emplace(part, path_of(part)).first->second;
}

const CutTensor* StoredParts::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(manifest_.tensors, name, {}, &CutTensor::name);
  return found == manifest_.tensors.end() || found->name != name ? nullptr : &*found;
}

/// Elements first … of the whole tensor, from all parts that have some of them.
void StoredParts::read(const std::string& name, std::uint64_t first, Compute& compute, const Tensor& to) {
  const CutTensor& tensor = *find(name);
  OnHost values(compute, to);
  const std::span<float> out = values.floats();
  for (std::size_t part = 0; part < manifest_.parts.size(); ++part) {
    const std::uint64_t begin = std::max(first, tensor.cuts[part]);
    const std::uint64_t end = std::min(first + out.size(), tensor.cuts[part + 1]);
    if (begin >= end) continue;
    const SafetensorsFile& stored = file(part);
    const StoredTensor* const piece = stored.find(name);
    if (piece == nullptr) throw ModelError(fmt::format("{} has changed while it was read", path_of(part).string()));
    stored.read_range(*piece, begin - tensor.cuts[part], out.subspan(begin - first, end - begin));
  }
  values.put_back();
}

}  // namespace kolo::models

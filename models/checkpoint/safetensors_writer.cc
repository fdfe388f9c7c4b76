#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/checkpoint/safetensors.h"
#include "models/util/atomic_file.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

std::string header_of(const std::vector<NamedValues>& tensors, const std::map<std::string, std::string>& metadata) {
  const auto text = [](std::string_view value) { return nlohmann::json(value).dump(); };
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
  std::uint64_t begin = 0;
  for (const NamedValues& tensor : tensors) {
    const std::uint64_t end = begin + tensor.values.size_bytes();
    const nlohmann::json shape(std::vector(tensor.shape.extents().begin(), tensor.shape.extents().end()));
    json += fmt::format("{}:{{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[{},{}]}},", text(tensor.name),
                        shape.dump(), begin, end);
    begin = end;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');  // so that tensors are aligned in a mapped file
  return json;
}

void check(const fs::path& path, const std::vector<NamedValues>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const NamedValues& tensor = sorted[i];
    if (i > 0 && sorted[i - 1].name == tensor.name)
      refuse_to_write(path, fmt::format("two tensors are named {}", in_quotes(tensor.name)));
    if (tensor.name == "__metadata__") refuse_to_write(path, "a tensor is named '__metadata__'");
    if (!tensor.shape.valid() || static_cast<std::size_t>(tensor.shape.elements()) != tensor.values.size()) {
      refuse_to_write(path, fmt::format("tensor {} has {} values, which is not what its shape needs",
                                        in_quotes(tensor.name), tensor.values.size()));
    }
  }
}

}  // namespace

void write_safetensors(const fs::path& path, std::span<const NamedValues> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<NamedValues> sorted(tensors.begin(), tensors.end());
  std::ranges::sort(sorted, {}, &NamedValues::name);
  check(path, sorted);
  std::string header;
  try {
    header = header_of(sorted, metadata);
  } catch (const nlohmann::json::exception&) {
    refuse_to_write(path, "a name or the metadata is not UTF-8");
  }
  AtomicFile file(path);
  std::array<unsigned char, 8> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length.data(), length.size());
  file.write(header.data(), header.size());
  for (const NamedValues& tensor : sorted) file.write(tensor.values.data(), tensor.values.size_bytes());
  file.commit();
}

void check_writable(const fs::path& path) {
  const AtomicFile probe(path);
}

}  // namespace kolo::models

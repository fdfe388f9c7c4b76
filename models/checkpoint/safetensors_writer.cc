#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include <kolo/float16.h>

#include "models/checkpoint/safetensors.h"
#include "models/util/atomic_file.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of(const NamedValues& tensor, DType stored) {
  return tensor.values.size() * size_of(stored);
}

std::string header_of(const std::vector<NamedValues>& tensors, const std::map<std::string, std::string>& metadata,
                      DType stored) {
  const auto text = [](std::string_view value) { return nlohmann::json(value).dump(); };
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
  std::uint64_t begin = 0;
  for (const NamedValues& tensor : tensors) {
    const std::uint64_t end = begin + bytes_of(tensor, stored);
    const nlohmann::json shape(std::vector(tensor.shape.extents().begin(), tensor.shape.extents().end()));
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},", text(tensor.name),
                        stored == DType::bf16 ? "BF16" : "F32", shape.dump(), begin, end);
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

/// Writes to a file, and knows what was written.
class SealedFile {
 public:
  explicit SealedFile(const fs::path& path) : file_(path) {}
  void write(const void* data, std::size_t bytes) {
    file_.write(data, bytes);
    seal_.add({static_cast<const char*>(data), bytes});
  }
  Seal commit() {
    file_.commit();
    return seal_;
  }

 private:
  AtomicFile file_;
  Seal seal_;
};

void write_values(SealedFile& file, std::span<const float> values, DType stored) {
  if (stored == DType::f32) return file.write(values.data(), values.size_bytes());
  std::vector<BFloat16> rounded(std::min<std::size_t>(values.size(), 1 << 18));  // a part of a tensor at a time
  while (!values.empty()) {
    const auto part = values.first(std::min(values.size(), rounded.size()));
    std::ranges::transform(part, rounded.begin(), to_bfloat16);
    file.write(rounded.data(), part.size() * sizeof(BFloat16));
    values = values.subspan(part.size());
  }
}

/// The tensors of each shard.
std::vector<std::span<const NamedValues>> shards_of(std::span<const NamedValues> tensors, DType stored,
                                                    std::uint64_t shard_bytes) {
  std::vector<std::span<const NamedValues>> shards;
  std::uint64_t filled = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of(tensors[i], stored);
    if (i > first && filled + bytes > shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      filled = 0;
    }
    filled += bytes;
  }
  shards.push_back(tensors.subspan(first));
  return shards;
}

}  // namespace

Seal write_safetensors(const fs::path& path, std::span<const NamedValues> tensors,
                       const std::map<std::string, std::string>& metadata, DType stored) {
  if (stored != DType::f32 && stored != DType::bf16) refuse_to_write(path, "only f32 and bf16 are written");
  std::vector<NamedValues> sorted(tensors.begin(), tensors.end());
  std::ranges::sort(sorted, {}, &NamedValues::name);
  check(path, sorted);
  std::string header;
  try {
    header = header_of(sorted, metadata, stored);
  } catch (const nlohmann::json::exception&) {
    refuse_to_write(path, "a name or the metadata is not UTF-8");
  }
  SealedFile file(path);
  std::array<unsigned char, 8> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length.data(), length.size());
  file.write(header.data(), header.size());
  for (const NamedValues& tensor : sorted) write_values(file, tensor.values, stored);
  return file.commit();
}

void write_model_files(const fs::path& folder, std::span<const NamedValues> tensors,
                       const std::map<std::string, std::string>& metadata, DType stored, std::uint64_t shard_bytes) {
  const auto shards = shards_of(tensors, stored, shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / "model.safetensors", tensors, metadata, stored);
    return;
  }
  nlohmann::json weight_map;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / name, shards[i], metadata, stored);
    for (const NamedValues& tensor : shards[i]) {
      weight_map[std::string(tensor.name)] = name;
      bytes += bytes_of(tensor, stored);
    }
  }
  const nlohmann::json index{{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}};
  write_atomic_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

void check_writable(const fs::path& path) {
  const AtomicFile probe(path);
}

}  // namespace kolo::models

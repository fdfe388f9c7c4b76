#include "models/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <system_error>

#include <kolo/float16.h>

#include "models/util/error.h"

namespace kolo::models {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian, and read as they are");

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view reason) {
  throw ModelError(fmt::format("cannot read {} ({}); give a complete .safetensors file", path.string(), reason));
}

template <class Stored, class Convert>
void convert(const std::vector<char>& bytes, std::span<float> out, Convert convert_one) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert_one(stored);
  }
}

void read_bytes(const std::filesystem::path& path, std::uint64_t from, char* out, std::uint64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(from));
  file.read(out, static_cast<std::streamsize>(bytes));
  if (!file) fail(path, fmt::format("{} bytes from byte {} on are not there any more", bytes, from));
}

std::uint64_t size_of_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) fail(path, error.message());
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, std::generic_category().message(errno));
  return bytes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::uint64_t file_bytes = size_of_file(path_);
  std::string head(std::min<std::uint64_t>(file_bytes, 8), '\0');
  read_bytes(path_, 0, head.data(), head.size());
  try {
    std::string json(safetensors_header_bytes(head, file_bytes), '\0');
    read_bytes(path_, 8, json.data(), json.size());
    buffer_start_ = 8 + json.size();
    header_ = parse_safetensors_header(json, file_bytes - buffer_start_);
  } catch (const ModelError& error) {
    fail(path_, error.what());
  }
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(header_.tensors, name, {}, &StoredTensor::name);
  return found == header_.tensors.end() || found->name != name ? nullptr : &*found;
}

void SafetensorsFile::read(const StoredTensor& tensor, std::span<float> out) const {
  const std::uint64_t bytes = tensor.end - tensor.begin;
  const std::uint64_t width = tensor.dtype == "F64" ? 8 : tensor.dtype == "F32" ? 4 : 2;
  if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16" && tensor.dtype != "F64") {
    fail(path_, fmt::format("tensor {} is {}, which is not converted to f32", in_quotes(tensor.name), tensor.dtype));
  }
  if (bytes != out.size() * width) {
    fail(path_, fmt::format("tensor {} has {} elements, not {}", in_quotes(tensor.name), bytes / width, out.size()));
  }
  const std::uint64_t from = buffer_start_ + tensor.begin;
  if (tensor.dtype == "F32") return read_bytes(path_, from, reinterpret_cast<char*>(out.data()), bytes);
  std::vector<char> stored(bytes);
  read_bytes(path_, from, stored.data(), bytes);
  if (tensor.dtype == "F16") return convert<Float16>(stored, out, [](Float16 half) { return to_float(half); });
  if (tensor.dtype == "BF16") return convert<BFloat16>(stored, out, [](BFloat16 half) { return to_float(half); });
  convert<double>(stored, out, [](double value) { return static_cast<float>(value); });
}

void SafetensorsFile::read_range(const StoredTensor& tensor, std::uint64_t first, std::span<float> out) const {
  const std::uint64_t elements = (tensor.end - tensor.begin) / sizeof(float);
  if (tensor.dtype != "F32" || first > elements || out.size() > elements - first) {
    fail(path_,
         fmt::format("tensor {} has no {} elements of F32 from {} on", in_quotes(tensor.name), out.size(), first));
  }
  read_bytes(path_, buffer_start_ + tensor.begin + first * sizeof(float), reinterpret_cast<char*>(out.data()),
             out.size_bytes());
}

}  // namespace kolo::models

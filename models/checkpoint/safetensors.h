#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/tensor.h>

#include "models/checkpoint/crc32c.h"

namespace kolo::models {

/// What a safetensors header says of one tensor.
struct StoredTensor {
  std::string name;
  std::string dtype;                 ///< as in the file: "F32", "BF16", …
  std::vector<std::uint64_t> shape;  ///< row-major; empty for a scalar
  std::uint64_t begin = 0;           ///< bytes begin … end-1 of the buffer behind the header
  std::uint64_t end = 0;
};

/// A header whose tensors cover the buffer exactly: no gap, no overlap, nothing left over.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in order of name
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Bytes of the JSON header, from the file's first eight. Errors: ModelError if fewer than 8+N bytes are there or N is
/// above 100 000 000.
std::uint64_t safetensors_header_bytes(std::string_view first_eight, std::uint64_t file_bytes);

/// Parses and checks a JSON header. Whatever the input, it returns a header that keeps every rule of the format, or
/// throws ModelError with the reason.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t buffer_bytes);

/// A safetensors file opened for reading: the header is read and checked at once, tensors on demand.
class SafetensorsFile {
 public:
  /// Errors: ModelError that names the file and the reason.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const StoredTensor> tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null if there is none of that name.
  const StoredTensor* find(std::string_view name) const;

  /// Reads a tensor of this file as f32. F32 comes as it is; F16, BF16 and F64 are converted; others are a ModelError,
  /// and so is an `out` of another size and a file that can no longer be read.
  void read(const StoredTensor& tensor, std::span<float> out) const;

  /// Reads elements first … first+out.size()-1 of a tensor that is stored as F32. Errors: ModelError if it has another
  /// type or fewer elements, or the file can no longer be read.
  void read_range(const StoredTensor& tensor, std::uint64_t first, std::span<float> out) const;

 private:
  std::filesystem::path path_;
  SafetensorsHeader header_;
  std::uint64_t buffer_start_ = 0;  // bytes from the start of the file
};

/// A tensor to be written. Views: name and values must live while write_safetensors runs.
struct NamedValues {
  std::string_view name;
  Shape shape;
  std::span<const float> values;
};

/// Writes a file of tensors: a new file beside `path`, synced to disk, then renamed, so that `path` is either the old
/// file or the whole new one. The same tensors and metadata give the same bytes, those the format's reference writer
/// gives. Returns size and CRC-32C of what was written. Errors: ModelError naming `path` and the reason; a name given
/// twice, a name or text that is not UTF-8.
///
/// stored  f32, or bf16: values are rounded to nearest, ties to even
Seal write_safetensors(const std::filesystem::path& path, std::span<const NamedValues> tensors,
                       const std::map<std::string, std::string>& metadata = {}, DType stored = DType::f32);

/// Writes tensors as public checkpoints are stored: "model.safetensors" in `folder`; or, if they take more than
/// `shard_bytes`, "model-00001-of-00003.safetensors", …, and then "model.safetensors.index.json", which says where each
/// is. A shard takes the next tensors in their order as long as they fit, at least one. Errors: as write_safetensors.
void write_model_files(const std::filesystem::path& folder, std::span<const NamedValues> tensors,
                       const std::map<std::string, std::string>& metadata, DType stored, std::uint64_t shard_bytes);

/// Finds out at once whether write_safetensors could create a file at `path` (not whether the disk has room).
/// Errors: ModelError as that would throw.
void check_writable(const std::filesystem::path& path);

}  // namespace kolo::models

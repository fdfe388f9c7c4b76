#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint/crc32c.h"
#include "models/util/error.h"

namespace kolo::models {

/// The files of a checkpoint beside its parts.
inline constexpr const char* manifest_file = "manifest.json";
inline constexpr const char* state_file = "state.json";

/// A part of a checkpoint: that of one of the ranks that wrote it.
struct Part {
  std::size_t index = 0;
  std::size_t of = 1;
};

/// The name of its file: "part-00001-of-00002.safetensors".
std::string file_of(const Part& part);

/// A tensor of a checkpoint, of which each part has a range of elements.
struct CutTensor {
  std::string name;                  ///< its kind, then the parameter's name: "value.layers.0.weight"
  std::vector<std::uint64_t> shape;  ///< of the whole tensor
  std::vector<std::uint64_t> cuts;   ///< part p has the elements cuts[p] … cuts[p+1]-1

  std::uint64_t first(std::size_t part) const { return cuts[part]; }
  std::uint64_t count(std::size_t part) const { return cuts[part + 1] - cuts[part]; }
};

/// Where `elements` elements are cut into `parts` parts: as kolo::rows_of_rank() deals rows to ranks.
std::vector<std::uint64_t> even_cuts(std::uint64_t elements, std::size_t parts);

/// What an evaluation is of: so many batches of each of so many ranks; by default, of all held-out examples.
struct EvaluatedOn {
  std::int64_t batches = 0, ranks = 0, examples = 0;  ///< examples of a batch

  bool is_all() const { return *this == EvaluatedOn{}; }
  bool operator==(const EvaluatedOn&) const = default;
};

/// The loss of an evaluation. Only losses of the same examples can be compared.
struct HeldOut {
  double loss = 0;
  EvaluatedOn of{};
  /// Of how many ranks a run's later evaluations are of the same batches; 0: nobody has settled that yet; below: older
  /// manifests do not tell.
  std::int64_t settled_for = -1;
};

/// What a checkpoint consists of.
struct Manifest {
  std::int64_t step = 0;            ///< steps done
  std::optional<HeldOut> held_out;  ///< of an evaluation at this step
  Seal state;                       ///< of state.json
  std::vector<Seal> parts;          ///< of each part's file
  std::vector<CutTensor> tensors;
};

/// A checkpoint that another version of kolo has written. It is not damaged.
class OtherFormat : public ModelError {
 public:
  using ModelError::ModelError;
};

/// A file that is there and cannot be read now, or cannot be told to be missing. It need not be damaged.
class Unreadable : public ModelError {
 public:
  using ModelError::ModelError;
};

std::string to_text(const Manifest& manifest);

/// Errors: OtherFormat; ModelError, "manifest.json is no manifest (REASON)", for all else but a manifest whose parts,
/// names and cuts fit each other.
Manifest parse_manifest(std::string_view text);

/// Whether there is nothing at a path. Not where that cannot be told, such as behind a link that leads nowhere now.
bool is_certainly_missing(const std::filesystem::path& path);

/// The text of a small file of a checkpoint. Errors: ModelError if it is missing, or a folder, a pipe and the
/// like; Unreadable, also for more than 256 MiB.
std::string text_of(const std::filesystem::path& path);

/// Reads a file. Errors: ModelError if it is missing; Unreadable.
Seal seal_of(const std::filesystem::path& path);

/// What is wrong with a file's size: "state.json has 100 bytes instead of 2000". Nothing if all is well.
std::optional<std::string> problem_of_size(const std::filesystem::path& path, const Seal& wanted);

/// The same for size and contents: "the CRC-32C of state.json is wrong". Reads the file.
std::optional<std::string> problem_of_file(const std::filesystem::path& path, const Seal& wanted);

}  // namespace kolo::models

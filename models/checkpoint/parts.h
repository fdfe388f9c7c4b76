#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/checkpoint/manifest.h"
#include "models/checkpoint/safetensors.h"
#include "models/model/model.h"
#include "models/optim/optimizer.h"

namespace kolo::models {

/// The tensors of a training, each cut evenly into `parts` parts: values, then the optimizer's state.
std::vector<CutTensor> cut_tensors(const Model& model, Optimizer& optimizer, std::size_t parts);

/// A copy of one part of a training's tensors: 12 bytes a parameter with Adam, divided by the number of parts. Its
/// memory is reused by the next copy.
class Snapshot {
 public:
  /// Takes part `part` of the tensors as they are now.
  ///
  /// tensors    cut_tensors() of this model and optimizer; of a tensor that the optimizer shares out among ranks it has
  ///            this part, of any other all
  void copy(std::span<const CutTensor> tensors, std::size_t part, Model& model, Optimizer& optimizer);

  /// As the tensors of copy().
  std::span<const AlignedFloats> pieces() const { return pieces_; }

 private:
  std::vector<AlignedFloats> pieces_;
};

/// Writes a part's file into a folder and syncs it: a safetensors file with the part's elements of each tensor, where
/// it has any. Errors: ModelError.
Seal write_part(const std::filesystem::path& folder, std::span<const CutTensor> tensors, const Part& part,
                const Snapshot& snapshot);

/// A checkpoint on disk, whose numbers any number of readers take from its parts. One thread at a time.
class StoredParts {
 public:
  /// Reads nothing yet.
  StoredParts(std::filesystem::path folder, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path path_of(std::size_t part) const;

  /// What makes a part useless: a wrong size or CRC-32C, tensors that are not those of the manifest, numbers that are
  /// infinite or NaN, whatever else is an error. Nothing if all is well. Reads all of it. Throws std::bad_alloc: that
  /// says nothing of the part.
  std::optional<std::string> problem_of(std::size_t part);

  /// Makes sure that these are the tensors of the model, whatever the optimizer's. Errors: ModelError that says what is
  /// not.
  void check_fit(const Model& model) const;
  /// The same of the model and the optimizer.
  void check_fit(const Model& model, Optimizer& optimizer) const;

  /// Reads all values of a bound model. Errors: ModelError if a file cannot be read; for a checkpoint that does not
  /// fit.
  void read_values(Model& model);
  /// Reads the optimizer's state of a rank.
  ///
  /// shards  the elements that this rank updates, for each parameter
  void read_state(Optimizer& optimizer, std::span<const Shard> shards);

 private:
  const SafetensorsFile& file(std::size_t part);
  const CutTensor* find(std::string_view name) const;
  void read(const std::string& name, std::uint64_t first, Compute& compute, const Tensor& to);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::size_t, SafetensorsFile> files_;  // by part, as far as they were opened
};

}  // namespace kolo::models

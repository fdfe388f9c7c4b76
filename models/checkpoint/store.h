#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/model/model.h"
#include "models/optim/optimizer.h"
#include "models/util/file_descriptor.h"

namespace kolo::models {

/// A tensor of a snapshot.
struct SnapshotTensor {
  std::string name;
  Shape shape;
  AlignedFloats values;
};

/// A copy of everything that training needs to resume. Its memory is reused by the next copy.
struct Snapshot {
  std::int64_t step = 0;                  ///< steps done
  std::vector<SnapshotTensor> values;     ///< of the model's parameters
  std::vector<SnapshotTensor> optimizer;  ///< the optimizer's state
  std::string state;                      ///< the program's own state: JSON

  /// Takes values and optimizer's state as they are now; of the state of parameters that are split only memory is made.
  void copy(const Model& model, Optimizer& optimizer);
  /// The optimizer's tensors, whole.
  std::vector<std::span<float>> optimizer_state();
};

/// A checkpoint on disk.
struct StoredCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path folder;
};

/// Checkpoints in a folder: each a folder "step-000000120" with model.safetensors, optimizer.safetensors, state.json
/// and manifest.json, which has the size and the CRC-32C of each of the others.
///
/// A checkpoint is written into a temporary folder, which is renamed once everything is on disk: a process or machine
/// that stops at any moment, and a full disk, leave earlier checkpoints intact.
class CheckpointStore {
 public:
  /// folder  made when the first checkpoint is written
  /// keep    the number of newest checkpoints to keep, at least 1; write() removes older ones
  CheckpointStore(std::filesystem::path folder, std::int64_t keep);

  const std::filesystem::path& folder() const { return folder_; }

  /// Newest first, damaged ones included. Errors: ModelError if there is something of that name that is no readable
  /// folder.
  std::vector<StoredCheckpoint> list() const;

  /// Writes a checkpoint, and removes the oldest beyond `keep`. Errors: ModelError with the reason; then nothing has
  /// changed.
  void write(const Snapshot& snapshot) const;

  /// Removes unfinished checkpoints of writers that were interrupted.
  void remove_leftovers() const;

  /// Takes a checkpoint that cannot be used out of the list, without deleting it: "unusable-step-000000120".
  void set_aside(const StoredCheckpoint& checkpoint) const;

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

/// An exclusive advisory lock on a folder; the system releases it when the process ends.
class FolderLock {
 public:
  /// folder  made if it is not there
  /// Waits some seconds for another holder to end: a run whose launcher was killed takes a moment to notice.
  /// Errors: ModelError if it stays, or the folder cannot be written to.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

/// What is wrong with a checkpoint, by its manifest: "model.safetensors has 100 bytes instead of 2000". Nothing if all
/// is well.
std::optional<std::string> problem_of(const StoredCheckpoint& checkpoint);

/// Reads values and the optimizer's tensors, each of whole parameters, and returns the state. Errors: ModelError if
/// they do not fit.
std::string load_checkpoint(const StoredCheckpoint& checkpoint, const Model& model,
                            std::span<const OptimizerTensor> optimizer);

}  // namespace kolo::models

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint/manifest.h"
#include "models/checkpoint/parts.h"
#include "models/util/file_descriptor.h"

namespace kolo::models {

/// A checkpoint on disk.
struct StoredCheckpoint {
  std::int64_t step = 0;  ///< steps done
  std::filesystem::path folder;
};

/// The checkpoint of the lowest held-out loss.
struct BestCheckpoint {
  StoredCheckpoint checkpoint;
  HeldOut held_out;
  std::string doubt{};  ///< why the manifest of another one, which may say a lower loss, could not be read; empty: none
  std::int64_t doubtful_step = -1;  ///< of the newest such one
};

/// Checkpoints in a folder: each a folder "step-000000120" with one file for each part, state.json (what the program
/// wants to know again) and manifest.json.
///
/// All parts are written into an unfinished folder, each by a process of its own. Once all are on disk one process
/// completes the checkpoint: it writes the manifest and renames the folder. Processes or machines that stop at any
/// moment, and a full disk, leave earlier checkpoints intact.
class CheckpointStore {
 public:
  /// folder  made when the first part is written
  /// keep    the number of newest checkpoints to keep, at least 1, beside the best one
  /// run     of unfinished folders' names: what a run that was killed may still be writing is not mixed with another's
  explicit CheckpointStore(std::filesystem::path folder, std::int64_t keep = 1, std::string run = "");

  const std::filesystem::path& folder() const { return folder_; }

  /// Newest first, damaged ones included, and those whose folder cannot be seen now. Errors: ModelError if there is
  /// something of the store's name that is no readable folder.
  std::vector<StoredCheckpoint> list() const;

  /// The one whose manifest says the lowest held-out loss, the earliest of several, among those whose loss is of the
  /// same examples as that of the newest which says one; nothing if none does. Manifests that are damaged say none, and
  /// so do those that are there and cannot be read now. Errors: as list(); ModelError if only such ones may say a loss.
  std::optional<BestCheckpoint> best() const;

  /// Writes one part of the unfinished checkpoint of a step, and syncs it. Errors: ModelError; then the checkpoint must
  /// be dropped.
  Seal write_part(std::int64_t step, std::span<const CutTensor> tensors, const Part& part,
                  const Snapshot& snapshot) const;
  /// The same for state.json.
  Seal write_state(std::int64_t step, std::string_view text) const;

  /// Completes the unfinished checkpoint of manifest.step, and removes the oldest beyond those to keep, but for one
  /// that a process holds (CheckpointHold), or that may be the best if a manifest cannot be read now. Errors:
  /// ModelError with the reason, such as a part that is not there; then the checkpoint is dropped.
  void commit(const Manifest& manifest) const;

  /// Whether there is no complete checkpoint of that step. False if that cannot be told, such as of a folder that
  /// cannot be read.
  bool lacks(std::int64_t step) const;

  /// Writes the held-out loss of a complete checkpoint into its manifest; has no effect if there is none of that step.
  /// May make it the best, and then removes old ones as commit() does. Errors: ModelError; then it is as it was.
  void note_held_out(std::int64_t step, const HeldOut& held_out) const;

  /// Removes the unfinished checkpoint of a step.
  void drop(std::int64_t step) const;

  /// Removes unfinished checkpoints of writers that were interrupted. Errors: ModelError, as list().
  void remove_leftovers() const;

  /// Takes a checkpoint out of the list, without deleting it: "unusable-step-000000120" with the word "unusable", or
  /// "unusable-step-000000120-2" if there is one of that name, and so on. Returns that name. Waits some seconds for
  /// those that hold it (CheckpointHold). Errors: ModelError, also if they stay.
  std::string set_aside(const StoredCheckpoint& checkpoint, std::string_view word) const;

  /// Where the parts of a step go that is not complete.
  std::filesystem::path unfinished(std::int64_t step) const;

 private:
  void remove_old() const;

  std::filesystem::path folder_;
  std::int64_t keep_;
  std::string run_;
};

/// Reads and checks what one process can check of a checkpoint without reading its parts: the manifest, the size of
/// each part, and state.json. Errors: ModelError with what is wrong, such as "state.json has 3 bytes instead of 300";
/// OtherFormat; Unreadable.
Manifest open_checkpoint(const StoredCheckpoint& checkpoint);

/// Keeps a checkpoint where it is, beside the run that writes newer ones, as long as this lives: a shared advisory
/// lock, which needs no right to write. It may have been removed before: then its folder is not there any more.
class CheckpointHold {
 public:
  CheckpointHold() = default;
  explicit CheckpointHold(const StoredCheckpoint& checkpoint);

 private:
  FileDescriptor file_;
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

}  // namespace kolo::models

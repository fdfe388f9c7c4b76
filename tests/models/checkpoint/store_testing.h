#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "models/checkpoint/store.h"
#include "models/optim/optimizer.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
/// Checkpoints of a small training in a folder.
class Store : public ::testing::Test {
 protected:
  /// A training of 59 numbers, and as many of each moment.
  Snapshot snapshot(std::size_t part = 0, std::size_t parts = 1) {
    Snapshot now;
    now.copy(tensors(parts), part, mlp_.model, *optimizer_);
    return now;
  }
  std::vector<CutTensor> tensors(std::size_t parts) { return cut_tensors(mlp_.model, *optimizer_, parts); }
  /// All parts into the unfinished folder.
  Manifest write_parts(std::int64_t step, std::size_t parts, std::optional<HeldOut> held_out = {}) {
    Manifest manifest{step, held_out, {}, {}, tensors(parts)};
    for (std::size_t part = 0; part < parts; ++part)
      manifest.parts.push_back(store_.write_part(step, manifest.tensors, {part, parts}, snapshot(part, parts)));
    manifest.state = store_.write_state(step, "{\"seed\":7}");
    return manifest;
  }
  void write(std::int64_t step, std::size_t parts = 2, std::optional<HeldOut> held_out = {}) {
    store_.commit(write_parts(step, parts, held_out));
  }
  std::vector<std::int64_t> steps() {
    std::vector<std::int64_t> all;
    for (const auto& checkpoint : store_.list()) all.push_back(checkpoint.step);
    return all;
  }
  std::size_t entries() {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(store_.folder()), {}));
  }
  /// What is wrong with a checkpoint, as all ranks together find out.
  std::optional<std::string> problem_of(const StoredCheckpoint& checkpoint) {
    try {
      StoredParts stored(checkpoint.folder, open_checkpoint(checkpoint));
      for (std::size_t part = 0; part < stored.manifest().parts.size(); ++part) {
        if (auto problem = stored.problem_of(part)) return problem;
      }
      return std::nullopt;
    } catch (const ModelError& error) {
      return error.what();
    }
  }
  StoredParts newest() {
    const StoredCheckpoint checkpoint = store_.list().front();
    return {checkpoint.folder, open_checkpoint(checkpoint)};
  }
  void train_a_step() {
    for (std::size_t i = 0; i < mlp_.gradients.size(); ++i) mlp_.gradients[i] = static_cast<float>(i);
    optimizer_->step(0.1, 1);
  }

  testing::TempFolder folder_;
  CheckpointStore store_{folder_ / "deep/checkpoints", 3, "run"};
  testing::BoundMlp mlp_{{5, 4, 7}};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer({.name = "adamw"}, mlp_.model.parameters());
};

}  // namespace kolo::models

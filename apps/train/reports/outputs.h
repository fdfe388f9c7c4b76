#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpoints.h"
#include "apps/train/job.h"
#include "apps/train/reports/plot.h"
#include "apps/train/reports/progress.h"
#include "apps/train/reports/step_log.h"
#include "apps/train/reports/tensorboard.h"
#include "models/llama/saved_model.h"

namespace kolo::train {

/// Each rank's peak memory, and that of its GPU (0: none), in bytes.
struct Peaks {
  std::vector<std::uint64_t> host, gpu;
};

/// One line: "memory    1.2 GiB per rank at the peak", and the GPUs' if there are any.
std::string to_string(const Peaks& peaks);

/// Everything that rank 0 writes and prints of a run, but for checkpoints.
class Outputs {
 public:
  /// Makes sure that files can be written; changes none. Errors: UsageError, models::ModelError.
  explicit Outputs(const Options& options);

  /// The run begins where `from` says. Errors: UsageError.
  void begin(const Job& job, const Resumed& from);

  /// The outputs that follow steps and evaluations.
  std::vector<Listener*> listeners();

  /// Shows the progress of a long part.
  void on_part(const PartEvent& event) { progress_->on_part(event); }

  /// The run is over: writes and closes files. Errors: UsageError, models::ModelError.
  ///
  /// finished  it came to its end: trained parameters are worth a file
  void finish(Job& job, bool finished);

  /// The last lines that are printed.
  std::string summary(const Peaks& peaks);

 private:
  models::SavedModel saved_model(const Job& job) const;

  Options options_;
  std::map<std::string, std::string> companions_;  // files to save beside a model
  std::optional<StepLog> log_;
  std::optional<TensorBoard> tensorboard_;
  std::optional<Plot> plot_;
  std::optional<Progress> progress_;
};

/// Checks --prompt before the training. Errors: UsageError for a prompt that is not token ids, models::ModelError for
/// tokens outside the vocabulary.
void check_sample(Job& job);

/// The prompt and the text that the model generates after it; token ids if neither a tokenizer nor bytes make text of
/// them.
/// Errors: as check_sample().
///
/// progress  called before each token with the number generated; false: no more are. May be empty
std::string sample_text(Job& job, const std::function<bool(std::int64_t)>& progress);

}  // namespace kolo::train

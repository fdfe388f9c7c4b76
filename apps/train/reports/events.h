#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/checkpoint/manifest.h"

namespace kolo::train {

/// One optimizer step.
struct StepEvent {
  std::int64_t step = 0;      ///< from 0
  std::int64_t epoch = 0;     ///< from 0
  std::int64_t examples = 0;  ///< over all ranks
  std::int64_t tokens = 0;    ///< in these examples; 0: the model has none
  double loss = 0;            ///< mean over their targets, in nats, before the update
  double lr = 0;
  double grad_norm = 0;  ///< of the mean loss's gradients, before clipping; may be infinite, of a step that was skipped
  double loss_scale = 0;    ///< of f16; 0: none
  bool skipped = false;     ///< its gradients were not finite: values are as they were
  double seconds = 0;       ///< wall time of the step on this rank
  double wait_seconds = 0;  ///< of these, the time that the training thread spent in wait()
  double data_seconds = 0;  ///< of these, the time that it waited for batches
  double flops = 0;         ///< of the model's products, over all ranks; 0: not known
  double peak_flops = 0;    ///< products that all ranks together can do in a second; 0: not known

  double samples_per_s() const { return static_cast<double>(examples) / seconds; }
  double tokens_per_s() const { return static_cast<double>(tokens) / seconds; }
  double exposed_comm() const { return wait_seconds / seconds; }
  double flops_per_s() const { return flops / seconds; }
  /// The share of what the ranks can do; 0 if either is not known.
  double of_peak() const { return peak_flops > 0 ? flops_per_s() / peak_flops : 0; }
  double data_wait() const { return data_seconds / seconds; }
};

/// One evaluation on the held-out examples.
struct EvalEvent {
  std::int64_t step = 0;  ///< the last one before it; 0 before any
  double loss = 0;        ///< mean over the targets, in nats
  double accuracy = 0;    ///< 0 … 1
  bool of_tokens = false;
  double bytes_per_target = 0;   ///< of the text that the targets stand for; 0: not known
  models::EvaluatedOn of{};      ///< the same on all ranks
  std::int64_t batches = 0;      ///< of this rank, and
  std::int64_t all_batches = 0;  ///< how many there would be
  double seconds = 0;            ///< wall time

  /// e to the loss; of tokens only. May be infinite.
  std::optional<double> perplexity() const { return of_tokens ? std::optional(std::exp(loss)) : std::nullopt; }
  /// The loss in bits, over the bytes of text; nothing where these are not known.
  std::optional<double> bits_per_byte() const {
    return bytes_per_target > 0 ? std::optional(loss / std::numbers::ln2 / bytes_per_target) : std::nullopt;
  }
};

/// 2-norms of a parameter's values after a step, and of its gradient in the step, before clipping.
struct ParameterNorm {
  std::string_view name;
  double value = 0;
  double gradient = 0;
};

/// Progress of a long part: an evaluation, or generating a sample.
struct PartEvent {
  std::string_view what;  ///< "measuring"
  std::int64_t done = 0;  ///< 0: it begins
  std::int64_t of = 0;
};

/// Receives the events of a training, on rank 0 only. Must not throw.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void on_step(const StepEvent& event) = 0;
  virtual void on_eval(const EvalEvent& event) = 0;
  virtual void on_norms(std::int64_t step, std::span<const ParameterNorm> norms) { (void)step, (void)norms; }
  virtual void on_part(const PartEvent& event) { (void)event; }
  /// True if training should stop: every rank then ends after the next step.
  virtual bool gives_up() const { return false; }
};

/// A listener that writes to a file. After the first problem it writes no more, and training should stop.
class FileListener : public Listener {
 public:
  bool gives_up() const final { return problem_.has_value(); }
  void on_step(const StepEvent& event) final {
    if (event.step % every_ == 0) write_step(event);
  }

  /// Errors: UsageError with the first problem.
  void close();

 protected:
  /// mode          of fopen()
  /// what, advice  for errors: "the log", and what to try
  /// every         steps between those that are written, from the first on
  /// Errors: UsageError if the file cannot be opened.
  FileListener(std::string path, const char* mode, std::string_view what, std::string_view advice, std::int64_t every);

  virtual void write_step(const StepEvent& event) = 0;

  const std::string& path() const { return path_; }
  int descriptor() const { return ::fileno(file_.get()); }
  /// Writes the bytes, and flushes.
  void write(std::string_view bytes);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  void note_problem();

  std::string path_;
  std::string_view what_, advice_;
  std::int64_t every_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::optional<std::string> problem_;
};

}  // namespace kolo::train

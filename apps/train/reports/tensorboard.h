#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/reports/events.h"

namespace kolo::train {

/// A file of scalars that TensorBoard reads: TFRecords of Event messages (tensorflow/core/util/event.proto), encoded by
/// hand.
class TensorBoard final : public Listener {
 public:
  /// Makes the folder, and a new file in it. Errors: UsageError.
  ///
  /// first  steps done before: TensorBoard ignores later steps in older files of the folder
  TensorBoard(const std::string& folder, std::int64_t first);

  void on_step(const StepEvent& event) override;
  void on_eval(const EvalEvent& event) override;
  bool gives_up() const override { return problem_.has_value(); }

  /// Errors: UsageError with the first problem there was.
  void close();

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  struct Closer {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };

  void write(std::int64_t step, const Scalars& scalars);
  void write_record(const std::string& message);
  void note_problem();

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::optional<std::string> problem_;
};

}  // namespace kolo::train

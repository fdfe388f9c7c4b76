#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/reports/events.h"

namespace kolo::train {

/// A file of scalars that TensorBoard reads: TFRecords of Event messages (tensorflow/core/util/event.proto), encoded by
/// hand.
class TensorBoard final : public FileListener {
 public:
  /// Makes the folder, and a new file in it. Errors: UsageError.
  ///
  /// first  steps done before: TensorBoard ignores later steps in older files of the folder. Nothing: it ignores none
  /// every  steps between those that are written
  TensorBoard(const std::string& folder, std::optional<std::int64_t> first, std::int64_t every);

  void on_eval(const EvalEvent& event) override;
  void on_norms(std::int64_t step, std::span<const ParameterNorm> norms) override;

 private:
  void write_step(const StepEvent& event) override;
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write_scalars(std::int64_t step, const Scalars& scalars);
  void write_record(const std::string& message);
};

}  // namespace kolo::train

#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include <kolo/group.h>
#include <kolo/session.h>

namespace kolo {

/// What all ranks count in a step of data-parallel training. It travels with the step's first gradient: so it wakes
/// nobody, and has arrived before the first sum.
class StepCount {
 public:
  /// Without `counts` a step counts the number of ranks, and nothing travels.
  struct Options {
    bool counts = false;
    bool divides = false;  ///< gradients are divided by what is expected, which must then be equal on all ranks
    int ranks = 1;
    std::string prefix{};
    Group group{};
    std::optional<double> timeout_seconds{};
  };
  StepCount(Session& session, Options options);

  /// See DataParallel::count(). Throws Error{invalid_argument}.
  void set(double mine, double expected);
  /// A gradient is ready; the first of a step sends the count. Throws Error{invalid_argument} if it was not set.
  void send();
  /// The step is over.
  void finish() { sent_ = set_ = false; }

  double expected() const { return expected_; }
  /// Waits for the others' counts. Throws Error.
  double total();

 private:
  void check_expected();

  Session* session_;
  Options options_;
  TensorId sum_name_, range_name_;
  double mine_ = 0, expected_ = 0;
  bool set_ = false, sent_ = false;
  std::optional<double> total_;    // once it is known
  std::array<double, 1> sum_{};    // on its way
  std::array<double, 2> range_{};  // the largest count that was expected, and minus the smallest
  Handle sum_handle_, range_handle_;
};

}  // namespace kolo

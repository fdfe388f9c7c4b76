#pragma once

#include <stdexcept>

namespace kolo::cli {

/// A command line, a file or an environment that cannot be used. `what()` is one line: *problem (why); what to try*.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  /// Ends every rank after one of them has printed the problem.
  static UsageError reported() { return UsageError(""); }
  bool is_reported() const { return what()[0] == '\0'; }
};

}  // namespace kolo::cli

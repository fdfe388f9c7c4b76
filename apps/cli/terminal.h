#pragma once

#include <stdexcept>
#include <string>

namespace kolo::cli {

/// A command line, a file or an environment that cannot be used. `what()` is one line: *problem (why); what to try*.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  /// Ends every rank after one of them has printed the problem.
  static UsageError reported() { return UsageError(""); }
  bool is_reported() const { return what()[0] == '\0'; }
};

/// This process's rank according to the launcher's environment; 0 without a launcher. Needs no session.
int launched_rank();

/// Writes "PROGRAM: PROBLEM" as one line to stderr, in one piece. Bytes that are not printable become \xNN; a long
/// text is truncated.
void print_problem(const std::string& problem);

/// Writes text to stdout, unbuffered. check_stdout() reports a failure.
void print(const std::string& text);

/// Errors: UsageError if a print() failed.
void check_stdout();

/// Whether stdout is a terminal, so that a line may be overwritten.
bool stdout_is_watched();

}  // namespace kolo::cli

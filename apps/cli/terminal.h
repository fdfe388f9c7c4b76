#pragma once

#include <string>

namespace kolo::train {

/// This process's rank as the launcher's environment has it; 0 without a launcher. Needs no session.
int launched_rank();

/// Writes "kolo-train: PROBLEM" as one line to stderr, in one piece. Bytes that are no text come out as \xNN; what is
/// long is cut.
void print_problem(const std::string& problem);

/// Writes text to stdout at once. What cannot be written is lost, and check_stdout() says so: there are better times to
/// end.
void print(const std::string& text);

/// Errors: UsageError if something that was to be printed was lost.
void check_stdout();

/// Whether people watch stdout, so that a line may be overwritten.
bool stdout_is_watched();

}  // namespace kolo::train

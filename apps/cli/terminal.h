#pragma once

#include <string>

namespace kolo::cli {

/// This process's rank according to the launcher's environment; 0 without a launcher. Needs no session.
int launched_rank();

/// Writes "PROGRAM: PROBLEM" as one line to stderr, in one piece. Bytes that are not printable become \xNN; a long
/// text is cut.
void print_problem(const std::string& problem);

/// Writes text to stdout at once. A failure is kept for check_stdout().
void print(const std::string& text);

/// Errors: UsageError if a print() failed.
void check_stdout();

/// Whether stdout is a terminal, so that a line may be overwritten.
bool stdout_is_watched();

}  // namespace kolo::cli

#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/kolo_bench/options.h"
#include "tests/models/models_testing.h"

namespace kolo::testing {

/// How a command line ended.
struct Ended {
  int code = 0;
  std::string out;
  std::string err;

  /// The lines of `out` that do not begin with #.
  std::vector<std::string> figures() const {
    std::vector<std::string> lines;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) {
      if (!line.starts_with('#')) lines.push_back(line);
    }
    return lines;
  }
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// kolo-bench (or `program`) on `ranks` ranks; 0: without a launcher. It gets 60 s.
inline Ended bench(const TempFolder& folder, int ranks, const std::string& arguments,
                   const std::string& environment = "", const char* program = KOLO_BENCH) {
  const auto out = (folder / "stdout").string(), err = (folder / "stderr").string();
  const std::string launcher = ranks == 0 ? "" : fmt::format("'{}' --oversubscribe -np {}", KOLO_MPIRUN, ranks);
  write_file(folder / "command", fmt::format("{} {} '{}' {}", environment, launcher, program, arguments));
  const int status = std::system(
      fmt::format("timeout 60 bash '{}' >'{}' 2>'{}' </dev/null", (folder / "command").string(), out, err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out), read_file(err)};
}

inline bench::Options bench_options(const std::string& line) {
  std::vector<std::string> words = words_of("kolo-bench " + line);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return bench::parse_options(static_cast<int>(argv.size()), argv.data());
}

/// What is said about a command line that cannot be used; "no error" if it can.
inline std::string bench_problem(const std::string& line) {
  try {
    bench_options(line);
  } catch (const bench::UsageError& problem) {
    return problem.what();
  }
  return "no error";
}

}  // namespace kolo::testing

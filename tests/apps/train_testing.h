#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "tests/models/models_testing.h"
#include "tests/support/environment.h"

namespace kolo::testing {

/// How a command line ended.
struct Finished {
  int code = 0;
  std::string out;
  std::string err;

  /// The lines of `err` that begin with "kolo-train: ", without that.
  std::vector<std::string> problems() const {
    constexpr std::string_view start = "kolo-train: ";
    std::vector<std::string> found;
    std::istringstream lines(err);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(start)) found.push_back(line.substr(start.size()));
    }
    return found;
  }
};

/// What the shell makes of `command`; it gets 60 s.
inline Finished run_shell(const TempFolder& folder, const std::string& command) {
  const auto out = (folder / "stdout").string(), err = (folder / "stderr").string();
  write_file(folder / "command", command);
  const int status = std::system(
      fmt::format("timeout 60 bash '{}' >'{}' 2>'{}' </dev/null", (folder / "command").string(), out, err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out), read_file(err)};
}

/// A text in which DIR stands for the folder.
inline std::string without(const TempFolder& folder, std::string text) {
  const std::string path = folder.path().string();
  for (std::size_t at = 0; (at = text.find(path)) != text.npos;) text.replace(at, path.size(), "DIR");
  return text;
}

/// The words that start kolo-train on `ranks` ranks; 0: without a launcher.
inline std::string kolo_train(int ranks) {
  const std::string program = fmt::format("'{}'", KOLO_TRAIN);
  if (ranks == 0) return program;
  return fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 '{}' --oversubscribe "
      "-np {} {}",
      KOLO_MPIRUN, ranks, program);
}

inline Finished train(const TempFolder& folder, int ranks, const std::string& flags,
                      const std::string& environment = "") {
  return run_shell(folder, fmt::format("{} {} {}", environment, kolo_train(ranks), flags));
}

/// The events of that kind in a log.
inline std::vector<nlohmann::json> events_in(const std::filesystem::path& log, std::string_view kind) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);) {
    auto event = nlohmann::json::parse(line);
    if (event["event"] == kind) events.push_back(std::move(event));
  }
  return events;
}

/// Names of the checkpoints in a folder, and of those that were set aside.
inline std::vector<std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto file = entry.path().filename().string();
    if (!file.starts_with('.')) names.push_back(file);
  }
  std::ranges::sort(names);
  return names;
}

inline std::vector<double> losses_in(const std::filesystem::path& log) {
  std::vector<double> losses;
  for (const auto& event : events_in(log, "step")) losses.push_back(event["loss"].get<double>());
  return losses;
}

/// The largest, over the tensors, of |got - want| / |want - start| (2-norms): how far apart two trained models are, by
/// the distance that one has moved. Tensors that `start` lacks are left out.
inline double apart(const std::filesystem::path& got, const std::filesystem::path& want,
                    const std::filesystem::path& start) {
  const models::SafetensorsFile got_file(got), want_file(want), start_file(start);
  const auto values = [](const models::SafetensorsFile& file, const models::StoredTensor& like) {
    std::vector<float> all((like.end - like.begin) / sizeof(float));
    file.read(*file.find(like.name), all);
    return all;
  };
  double worst = 0;
  for (const models::StoredTensor& tensor : want_file.tensors()) {
    if (start_file.find(tensor.name) == nullptr) continue;
    const auto g = values(got_file, tensor), w = values(want_file, tensor), s = values(start_file, tensor);
    double error = 0, moved = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      error += std::pow(static_cast<double>(g[i]) - w[i], 2);
      moved += std::pow(static_cast<double>(w[i]) - s[i], 2);
    }
    worst = std::max(worst, std::sqrt(error / std::max(moved, 1e-30)));
  }
  return worst;
}

}  // namespace kolo::testing

#include "apps/train/step_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/train/options.h"

namespace kolo::train {
namespace {

double rounded(double value, double steps_per_unit) {
  return std::round(value * steps_per_unit) / steps_per_unit;
}

}  // namespace

StepLog::StepLog(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "ae")) {
  if (!file_) note_problem();
  if (problem_) throw UsageError(*problem_);
}

void StepLog::begin() {
  (void)::ftruncate(::fileno(file_.get()), 0);  // what cannot be emptied, a pipe or a terminal, is empty
}

void StepLog::on_step(const StepEvent& event) {
  const nlohmann::ordered_json line{{"event", "step"},
                                    {"step", event.step},
                                    {"loss", event.loss},
                                    {"lr", event.lr},
                                    {"samples_per_s", rounded(event.samples_per_s(), 10)},
                                    {"exposed_comm", rounded(event.exposed_comm(), 1e4)}};
  write(line.dump() + "\n");
}

void StepLog::on_eval(const EvalEvent& event) {
  const nlohmann::ordered_json line{
      {"event", "eval"}, {"step", event.step}, {"loss", event.loss}, {"accuracy", event.accuracy}};
  write(line.dump() + "\n");
}

void StepLog::close() {
  if (file_ && std::fclose(file_.release()) != 0) note_problem();
  if (problem_) throw UsageError(*problem_);
}

void StepLog::write(const std::string& line) {
  if (problem_) return;
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (!written || std::fflush(file_.get()) != 0) note_problem();
}

void StepLog::note_problem() {
  const std::string reason = std::generic_category().message(errno);
  if (!problem_) {
    problem_ = fmt::format("cannot write the log {} ({}); give --log a file in a folder that is writable and has room",
                           path_, reason);
  }
}

}  // namespace kolo::train

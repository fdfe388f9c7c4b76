#include "apps/train/reports/step_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/train/options/options.h"

namespace kolo::train {
namespace {

double rounded(double value, double steps_per_unit) {
  return std::round(value * steps_per_unit) / steps_per_unit;
}

/// Passes an event of a log to the listeners if it is one of the first `steps` steps, or an evaluation after one of the
/// first `evals`. Returns whether it is.
bool replay(const nlohmann::json& event, std::int64_t steps, std::int64_t evals, std::span<Listener* const> listeners) {
  const auto number = [&](const char* key) {
    return event.contains(key) && event[key].is_number() ? event[key].get<double>() : NAN;
  };
  const auto named = event.find("event");
  const std::string kind = named != event.end() && named->is_string() ? named->get<std::string>() : "";
  const double step = number("step");
  if (kind == "step" && step < static_cast<double>(steps)) {
    for (Listener* listener : listeners) {
      listener->on_step({.step = static_cast<std::int64_t>(step), .loss = number("loss"), .lr = number("lr")});
    }
    return true;
  }
  if (kind != "eval" || !(step < static_cast<double>(evals))) return false;
  for (Listener* listener : listeners) {
    listener->on_eval(
        {.step = static_cast<std::int64_t>(step), .loss = number("loss"), .accuracy = number("accuracy")});
  }
  return true;
}

/// Like fopen(), but for a pipe that nobody reads, which is an error: fopen() would wait.
std::FILE* open_file(const std::string& path, const char* mode) {
  const int where = *mode == 'a' ? O_APPEND : O_TRUNC;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | where, 0666);
  if (descriptor < 0) return nullptr;
  (void)::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  std::FILE* const file = ::fdopen(descriptor, mode);
  if (file == nullptr) (void)::close(descriptor);
  return file;
}

}  // namespace

FileListener::FileListener(std::string path, const char* mode, std::string_view what, std::string_view advice,
                           std::int64_t every)
    : path_(std::move(path)), what_(what), advice_(advice), every_(every), file_(open_file(path_, mode)) {
  if (file_) return;
  note_problem();
  throw UsageError(*problem_);
}

void FileListener::close() {
  if (file_ && std::fclose(file_.release()) != 0) note_problem();
  if (problem_) throw UsageError(*problem_);
}

void FileListener::write(std::string_view bytes) {
  if (problem_) return;
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size();
  if (!written || std::fflush(file_.get()) != 0) note_problem();
}

void FileListener::note_problem() {
  const bool unread = errno == ENXIO && std::filesystem::is_fifo(path_);
  const std::string reason = unread ? "nobody reads this pipe" : std::generic_category().message(errno);
  if (!problem_) problem_ = fmt::format("cannot write {} {} ({}); {}", what_, path_, reason, advice_);
}

StepLog::StepLog(const std::string& path, std::int64_t every)
    : FileListener(path, "ae", "the log", "give --log a file in a folder that is writable and has room", every) {}

void StepLog::begin(std::int64_t steps_done, bool measures_again, std::span<Listener* const> listeners) {
  const std::int64_t evals = measures_again ? steps_done - 1 : steps_done;
  const std::string kept = steps_done > 0 ? lines_of_first(steps_done, evals, listeners) : "";
  (void)::ftruncate(descriptor(), 0);  // what cannot be emptied, a pipe or a terminal, is empty
  if (!kept.empty()) write(kept);
}

/// Reading from a pipe, or a terminal, would wait for what this run writes.
bool StepLog::is_file() const {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path(), ignored);
}

/// A last line that is not complete is ended, so that the next one is a line of its own.
void StepLog::begin_behind(std::span<Listener* const> listeners) {
  constexpr auto all = std::numeric_limits<std::int64_t>::max();
  (void)lines_of_first(all, all, listeners);
  std::ifstream file;
  if (is_file()) file.open(path(), std::ios::binary);
  if (file.is_open() && file.seekg(-1, std::ios::end) && file.get() != '\n') write("\n");
}

/// Incomplete lines, such as the last one of a run that was killed, are dropped.
std::string StepLog::lines_of_first(std::int64_t steps, std::int64_t evals,
                                    std::span<Listener* const> listeners) const {
  std::string kept;
  std::ifstream file;
  if (is_file()) file.open(path());
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_discarded() || !event.is_object() || !replay(event, steps, evals, listeners)) continue;
    kept += line + "\n";
  }
  return kept;
}

void StepLog::write_step(const StepEvent& event) {
  nlohmann::ordered_json line{
      {"event", "step"}, {"step", event.step},           {"loss", event.loss},
      {"lr", event.lr},  {"grad_norm", event.grad_norm}, {"samples_per_s", rounded(event.samples_per_s(), 1e3)}};
  if (event.tokens > 0) line["tokens_per_s"] = rounded(event.tokens_per_s(), 10);
  line["exposed_comm"] = rounded(event.exposed_comm(), 1e4);
  line["data_wait"] = rounded(event.data_wait(), 1e4);
  if (event.flops > 0) line["flops_per_s"] = rounded(event.flops_per_s(), 1e-3);
  if (event.of_peak() > 0) line["of_peak"] = rounded(event.of_peak(), 1e4);
  if (event.loss_scale > 0) {
    line["loss_scale"] = event.loss_scale;
    line["skipped"] = event.skipped;
  }
  write(line.dump() + "\n");
}

void StepLog::on_eval(const EvalEvent& event) {
  nlohmann::ordered_json line{
      {"event", "eval"}, {"step", event.step}, {"loss", event.loss}, {"accuracy", event.accuracy}};
  if (const auto perplexity = event.perplexity()) line["perplexity"] = *perplexity;
  if (const auto bits = event.bits_per_byte()) line["bits_per_byte"] = *bits;
  line["batches"] = event.batches;
  line["all_batches"] = event.all_batches;
  write(line.dump() + "\n");
}

}  // namespace kolo::train

#include "apps/train/reports/outputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/safetensors.h"

namespace kolo::train {

Outputs::Outputs(const Options& options) : options_(options) {
  if (!options.save.empty()) models::check_writable(options.save);
  if (!options.plot.empty()) {
    models::check_writable(options.plot);
    plot_.emplace(options.plot, fmt::format("kolo-train --model {}", options.model));
  }
  if (!options.log.empty()) log_.emplace(options.log);
}

void Outputs::begin(const Job& job, std::int64_t first) {
  std::vector<Listener*> of_earlier_steps;
  if (plot_) of_earlier_steps.push_back(&*plot_);
  const bool measures_first = options_.eval_only || first >= job.last_step();
  if (log_) log_->begin(first, measures_first, of_earlier_steps);
  if (!options_.tensorboard.empty()) tensorboard_.emplace(options_.tensorboard, first);
  progress_.emplace(first, job.last_step(), job.sampler().steps_per_epoch());
}

std::vector<Listener*> Outputs::listeners() {
  std::vector<Listener*> all;
  if (log_) all.push_back(&*log_);
  if (tensorboard_) all.push_back(&*tensorboard_);
  if (plot_) all.push_back(&*plot_);
  all.push_back(&*progress_);
  return all;
}

void Outputs::finish(Job& job, bool finished) {
  if (finished && !options_.save.empty()) models::save_parameters(options_.save, job.model());
  if (plot_) plot_->write();
  if (log_) log_->close();
  if (tensorboard_) tensorboard_->close();
}

std::string to_string(const Peaks& peaks) {
  const auto range = [](const std::vector<std::uint64_t>& of_ranks) {
    const auto [least, most] = std::ranges::minmax(of_ranks);
    return (format_bytes(least) == format_bytes(most) ? "" : format_bytes(least) + " to ") + format_bytes(most);
  };
  std::string text = fmt::format("memory    {} per rank at the peak", range(peaks.host));
  if (std::ranges::max(peaks.gpu) > 0) text += fmt::format("; {} in use on each rank's GPU", range(peaks.gpu));
  return text + "\n";
}

std::string Outputs::summary(const Peaks& peaks) {
  progress_->end_line();
  return progress_->summary(static_cast<int>(peaks.host.size())) + to_string(peaks);
}

}  // namespace kolo::train

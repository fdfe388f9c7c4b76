#include "apps/train/reports/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "apps/cli/terminal.h"

namespace kolo::train {
namespace {

constexpr std::chrono::milliseconds live_pause{100};  // so that the line can be read, and costs nothing
constexpr std::chrono::seconds plain_pause{2};
constexpr std::int64_t percent_between_lines = 5;
constexpr std::size_t live_columns = 79;  // a line that wraps cannot be overwritten

/// "1.5432 46.20% perplexity 4.68 bits/byte 2.226", and "of 12/100 batches" unless it is of all.
std::string evaluation_text(const EvalEvent& event) {
  std::string text = fmt::format("{:.4f} {:.2f}%", event.loss, 100 * event.accuracy);
  if (const auto perplexity = event.perplexity()) text += fmt::format(" perplexity {:.4g}", *perplexity);
  if (const auto bits = event.bits_per_byte()) text += fmt::format(" bits/byte {:.4f}", *bits);
  if (event.batches < event.all_batches) text += fmt::format(" of {}/{} batches", event.batches, event.all_batches);
  return text;
}

/// A line of the summary; nothing of images.
std::string text_of_text(const EvalEvent& event) {
  const auto perplexity = event.perplexity(), bits = event.bits_per_byte();
  if (!perplexity) return "";
  return fmt::format("text      perplexity {:.4g}{} held-out\n", *perplexity,
                     bits ? fmt::format(", {:.4f} bits per byte", *bits) : "");
}

}  // namespace

void Progress::Sums::add(const StepEvent& event) {
  ++steps;
  examples += event.examples;
  tokens += event.tokens;
  skipped += event.skipped ? 1 : 0;
  loss += event.loss * static_cast<double>(event.examples);
  seconds += event.seconds;
  wait_seconds += event.wait_seconds;
  data_seconds += event.data_seconds;
  flops += event.flops;
}

std::string Progress::Sums::speed() const {
  const bool counts_tokens = tokens > 0;
  return fmt::format("{:.0f} {}/s", static_cast<double>(counts_tokens ? tokens : examples) / seconds,
                     counts_tokens ? "tokens" : "samples");
}

Progress::Progress(std::int64_t first, std::int64_t last_step, std::int64_t steps_per_epoch, std::int64_t eval_every)
    : first_(first),
      last_step_(last_step),
      steps_per_epoch_(steps_per_epoch),
      live_(cli::stdout_is_watched()),
      start_(Clock::now()),
      shown_(start_),
      left_(last_step, eval_every) {}

Progress::~Progress() {
  end_line();
}

void Progress::end_line() {
  if (std::exchange(line_open_, false)) cli::print("\n");
}

void Progress::on_step(const StepEvent& event) {
  all_.add(event);
  recent_.add(event);
  last_ = event;
  left_.add(event);
  if (Clock::now() - shown_ >= pause()) show(false);
}

void Progress::on_eval(const EvalEvent& event) {
  eval_ = event;
  left_.add(event);
  show(true);
  if (recent_.steps > 0) before_eval_ = recent_;
  recent_ = {};
}

/// Short parts are not printed.
void Progress::on_part(const PartEvent& event) {
  const auto now = Clock::now();
  const std::int64_t percent = 100 * event.done / event.of;
  if (event.done == 0) {
    part_began_ = now;
    part_shown_ = 0;
  }
  if (now - std::max(shown_, part_began_) < pause() || (!live_ && percent < part_shown_ + percent_between_lines))
    return;
  part_shown_ = percent;
  print_line(fmt::format("step {}/{} {} {}%", steps_done(), last_step_, event.what, percent), false);
}

Progress::Clock::duration Progress::pause() const {
  return live_ ? Clock::duration(live_pause) : Clock::duration(plain_pause);
}

/// A line that stays has more fields than one that must fit a terminal.
std::string Progress::line(bool stays) const {
  std::string text;
  if (stays) {
    const auto epochs_in = [&](std::int64_t steps) { return (steps + steps_per_epoch_ - 1) / steps_per_epoch_; };
    text = fmt::format("epoch {}/{} ", epochs_in(steps_done()), epochs_in(last_step_));
  }
  text += fmt::format("step {}/{}", steps_done(), last_step_);
  if (const auto left = left_.seconds(); left && steps_done() < last_step_)
    text += fmt::format(" {} left", duration_text(*left));
  if (recent_.steps > 0) text += fmt::format(" loss {:.4f}", recent_.mean_loss());
  if (stays && eval_) text += " held-out " + evaluation_text(*eval_);
  if (recent_.steps > 0) {
    text += fmt::format(" {} waiting {:.0f}% data {:.0f}% lr {:.2e} norm {:.2f}", recent_.speed(),
                        recent_.waiting_percent(), recent_.data_percent(), last_.lr, last_.grad_norm);
  }
  return text;
}

void Progress::show(bool stays) {
  print_line(line(stays || !live_), stays);
}

void Progress::print_line(std::string text, bool stays) {
  if (live_) text.resize(std::min(text.size(), live_columns));
  const std::string_view start = line_open_ ? "\r" : "", end = stays || !live_ ? "\n" : "";
  cli::print(fmt::format("{}{}{}{}", start, text, line_open_ ? "\x1b[K" : "", end));
  line_open_ = live_ && !stays;
  shown_ = Clock::now();
}

double Progress::elapsed() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

std::string Progress::summary(int ranks) const {
  const std::string before = first_ > 0 ? fmt::format(" after {} of an earlier run", first_) : "";
  std::string text = fmt::format("steps     {}{} in {:.2f} epochs, {:.1f} s\n", all_.steps, before,
                                 static_cast<double>(all_.steps) / static_cast<double>(steps_per_epoch_), elapsed());
  const Sums& last = recent_.steps > 0 ? recent_ : before_eval_;
  if (last.steps > 0) {
    text +=
        fmt::format("loss      {:.4f} in the last {} step{}", last.mean_loss(), last.steps, last.steps == 1 ? "" : "s");
    text += eval_ ? fmt::format(", {:.4f} held-out\n", eval_->loss) : "\n";
  }
  if (last_.loss_scale > 0) {
    text += fmt::format("f16       {} step{} skipped since gradients overflowed; the loss scale is {:g}\n",
                        all_.skipped, all_.skipped == 1 ? "" : "s", last_.loss_scale);
  }
  if (eval_) text += fmt::format("accuracy  {:.2f} % held-out\n", 100 * eval_->accuracy) + text_of_text(*eval_);
  return text + text_of_speed(ranks);
}

std::string Progress::text_of_speed(int ranks) const {
  if (all_.steps == 0) return "";
  std::string text = fmt::format(
      "speed     {} over {} rank{}, {:.1f} % of the step time waiting for communication, {:.1f} % for data\n",
      all_.speed(), ranks, ranks == 1 ? "" : "s", all_.waiting_percent(), all_.data_percent());
  if (all_.flops == 0) return text;
  const double flops_per_s = all_.flops / all_.seconds;
  text += fmt::format("flops     {:.1f} GFLOP/s in products", 1e-9 * flops_per_s);
  if (last_.peak_flops > 0) {
    text += fmt::format(", {:.0f} % of the {:.1f} GFLOP/s that products alone reached at the start",
                        100 * flops_per_s / last_.peak_flops, 1e-9 * last_.peak_flops);
  }
  return text + "\n";
}

}  // namespace kolo::train

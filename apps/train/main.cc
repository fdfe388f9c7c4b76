// kolo-train: trains a model on all ranks that mpirun starts. Every rank opens the session first; later errors are
// agreed through it, so that one rank prints them and all end together.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <kolo/session.h>

#include "apps/cli/agreement.h"
#include "apps/cli/flags.h"
#include "apps/cli/terminal.h"
#include "apps/memory.h"
#include "apps/train/checkpoints.h"
#include "apps/train/evaluator.h"
#include "apps/train/job.h"
#include "apps/train/midway.h"
#include "apps/train/options/options.h"
#include "apps/train/reports/outputs.h"
#include "apps/train/requests.h"
#include "apps/train/tokenizer_command.h"
#include "apps/train/trainer.h"
#include "models/checkpoint/store.h"

namespace kolo::train {
namespace {

/// Defaults of settings for training, unless the environment sets them: ranks of varying speed wait less for each other
/// with several buckets, and if a short wait does not put a core to sleep. From there on the threshold is tuned.
constexpr std::array<std::pair<const char*, const char*>, 2> own_defaults{
    {{"KOLO_FUSION_BYTES", "1M"}, {"KOLO_SPIN_US", "1000"}}};

/// The settings of the environment; or the default ones, and what is wrong with it.
Config settings_of_environment(std::optional<std::string>& problem) {
  try {
    std::vector<std::string> unknown;
    Config config = Config::from_environment(&unknown);
    if (!config.fusion_bytes_set && config.fusion_tuning == "auto") config.set("KOLO_FUSION_TUNING", "on");
    for (const auto& [variable, value] : own_defaults) {
      if (std::getenv(variable) == nullptr) config.set(variable, value);
    }
    if (!unknown.empty()) problem = fmt::format("{} (--help lists the settings)", fmt::join(unknown, "; "));
    return config;
  } catch (const Error& error) {
    problem = error.what();
    return {};
  }
}

/// What a run consists of, on this rank; all must outlive it.
struct Run {
  Session& session;
  Job& job;
  Outputs* outputs;  // on rank 0
  CheckpointWriter& checkpoints;
  Requests& requests;

  std::vector<Listener*> listeners() const {
    return outputs != nullptr ? outputs->listeners() : std::vector<Listener*>{};
  }
  Midway midway() const { return {session, checkpoints, requests}; }
};

/// Evaluates on all held-out examples, and trains nothing.
Trainer::End measure(const Run& run, std::int64_t steps_done) {
  Evaluator evaluator(run.session, run.job, run.listeners(), run.midway());
  run.job.parallel().broadcast_parameters();
  evaluator.report(steps_done, evaluator.evaluate_all());
  return evaluator.stopped() ? Trainer::End::unmeasured : Trainer::End::finished;
}

/// Trains, or only measures.
Trainer::End train_or_measure(const Run& run, const Resumed& from) {
  if (run.job.options().eval_only) return measure(run, from.steps_done);
  std::optional<Trainer> trainer;
  cli::collectively(run.session, [&] {
    trainer.emplace(run.session, run.job, from, run.listeners(), run.checkpoints, run.requests);
  });
  trainer->share_parameters();
  return trainer->run();
}

/// Whether there is something to keep: training is over after its last step, measuring once the loss is known.
bool is_whole(Trainer::End end, const Options& options) {
  return end == Trainer::End::finished || (end == Trainer::End::unmeasured && !options.eval_only);
}

/// The same, and writes what comes of it.
Trainer::End run_and_write(const Run& run, const Resumed& from) {
  try {
    const Trainer::End end = train_or_measure(run, from);
    run.checkpoints.complete();  // whatever becomes of the files
    cli::collectively(run.session, [&] {
      if (run.outputs != nullptr) run.outputs->finish(run.job, is_whole(end, run.job.options()));
    });
    return end;
  } catch (const UsageError& error) {
    if (error.is_reported()) run.checkpoints.complete();  // on all ranks: none that was taken is lost
    throw;
  }
}

std::string text_of(Trainer::End end, const Options& options) {
  if (end == Trainer::End::unmeasured) return "stopped   before the end of the evaluation, as asked\n";
  if (end != Trainer::End::stopped) return "";
  return options.checkpoint.empty() ? "stopped   before the last step, as asked\n"
                                    : "stopped   before the last step, as asked; --resume goes on\n";
}

/// The samples that are asked for; a line that says so if there are none since a rank was asked to stop. Every rank
/// writes the same ones: none waits for another. Collective.
std::string samples_of(const Run& run) {
  const Options& options = run.job.options();
  if (options.sample == 0) return "";
  std::string text;
  const auto write = [&](const Midway::GoesOn& goes_on) {
    text = sample_text(run.job, [&](std::int64_t tokens) {
      if (run.outputs != nullptr) run.outputs->on_part({"writing", tokens, options.sample});
      return goes_on();
    });
  };
  Midway midway = run.midway();
  const bool whole = !midway.any_stops() && midway.run(options.samples * options.sample, write);
  return whole ? text : "stopped   before the end of the sample, as asked\n";
}

Peaks peaks_of_all(Session& session) {
  const auto of_all = [&](std::string_view name, std::uint64_t peak) {
    std::vector<std::uint64_t> mine{peak}, all(static_cast<std::size_t>(session.size()));
    session.all_gather(name, view(mine), view(all));
    return all;
  };
  return {of_all("peak memory", peak_memory()), of_all("peak memory of GPUs", session.stats().device_peak_bytes)};
}

void train(Session& session, int argc, char** argv, Requests::Clock::time_point start,
           const std::optional<std::string>& problem) {
  Options options;
  std::unique_ptr<Job> job;
  std::optional<Outputs> outputs;           // on rank 0
  std::optional<models::FolderLock> alone;  // in writing checkpoints to this folder
  cli::collectively(session, [&] {          // CUDA takes more addresses than memory
    if (session.device().kind == DeviceKind::cpu) limit_memory(session.local_size());
  });
  cli::collectively(session, [&] {
    if (problem) throw UsageError(*problem);
    options = parse_options(argc, argv);
    job = std::make_unique<Job>(options, session);
    if (options.sample > 0) check_sample(*job);
    if (session.rank() > 0) return;
    outputs.emplace(options);
    if (!options.checkpoint.empty() && !options.eval_only) alone.emplace(options.checkpoint);
    if (!options.checkpoint.empty() && options.resume.empty())
      check_no_checkpoints(models::CheckpointStore(options.checkpoint));
  });
  cli::check_same(session, job->agreed());
  if (outputs) cli::print(job->description());
  const Resumed from = options.resume.empty() ? Resumed{} : resume(session, *job);
  CheckpointWriter checkpoints(session, *job, from.steps_done);
  Requests requests(start, options.max_minutes);
  cli::collectively(session, [&] {
    if (outputs) outputs->begin(*job, from);
  });
  const Run run{session, *job, outputs ? &*outputs : nullptr, checkpoints, requests};
  const Trainer::End end = run_and_write(run, from);
  checkpoints.finish();
  const std::string sample = samples_of(run);
  const auto peaks = peaks_of_all(session);
  cli::collectively(session, [&] {  // the files come first
    if (outputs) cli::print(outputs->summary(peaks) + checkpoints.summary() + text_of(end, options) + sample);
    cli::check_stdout();
  });
}

int open_session_and_train(int argc, char** argv, Requests::Clock::time_point start) {
  std::optional<std::string> problem;
  Session session(settings_of_environment(problem));
  try {
    train(session, argc, argv, start, problem);
    return 0;
  } catch (const UsageError& error) {
    if (!error.is_reported()) throw;
    return 1;
  }
}

/// Ends this process after an error that could not be agreed on, without waiting for ranks that may be stuck.
[[noreturn]] void leave(const std::string& problem) {
  cli::print_problem(problem);
  std::quick_exit(1);
}

/// The same for an error of the session, which other ranks got as well. If a rank left, only that rank knows the
/// reason: the others wait a little, and the launcher, which ends all ranks when one has failed, ends them before they
/// print.
[[noreturn]] void leave_in_turn(const Error& error) {
  constexpr std::chrono::seconds to_end_all{3};  // of mpirun, which asks processes to end after one second
  const int turn = (error.code() == ErrorCode::aborted ? 2 : 0) + (cli::launched_rank() > 0 ? 1 : 0);
  std::this_thread::sleep_for(turn * to_end_all);
  leave(error.what());
}

}  // namespace
}  // namespace kolo::train

int main(int argc, char** argv) {
  using namespace kolo;
  using namespace kolo::train;
  const auto start = Requests::Clock::now();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of write(), as a full disk is
  std::signal(SIGPIPE, SIG_IGN);  // so is a closed pipe
  try {
    const bool makes_tokenizer = argc > 1 && std::string_view(argv[1]) == "tokenizer";
    if (const auto text = makes_tokenizer ? cli::requested_text(argc, argv, "kolo-train", tokenizer_help)
                                          : requested_text(argc, argv)) {
      if (cli::launched_rank() == 0) cli::print(*text);
      cli::check_stdout();
      return 0;
    }
    if (makes_tokenizer) {
      train_tokenizer(argc - 1, argv + 1);
      cli::check_stdout();
      return 0;
    }
    take_signals_as_requests();
    reserve_memory();
    return open_session_and_train(argc, argv, start);
  } catch (const kolo::Error& error) {
    leave_in_turn(error);
  } catch (const std::exception& error) {
    leave(cli::problem_of(error));
  }
}

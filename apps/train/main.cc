// kolo-train: trains a model on all ranks that mpirun starts. Every rank opens the session first; whatever goes wrong
// later is agreed through it, so that one rank says what it was and all end together.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include <kolo/session.h>

#include "apps/train/agreement.h"
#include "apps/train/job.h"
#include "apps/train/options.h"
#include "apps/train/progress.h"
#include "apps/train/step_log.h"
#include "apps/train/terminal.h"
#include "apps/train/trainer.h"
#include "models/checkpoint.h"

namespace kolo::train {
namespace {

/// The settings of the environment; or the default ones, and what is wrong with it.
Config settings_of_environment(std::optional<std::string>& problem) {
  try {
    std::vector<std::string> unknown;
    const Config config = Config::from_environment(&unknown);
    if (!unknown.empty()) problem = fmt::format("{} (--help lists the settings)", fmt::join(unknown, "; "));
    return config;
  } catch (const Error& error) {
    problem = error.what();
    return {};
  }
}

/// What rank 0 writes.
struct Outputs {
  Outputs(const Options& options, Job& job) : progress(job.last_step(), job.sampler().steps_per_epoch()) {
    if (!options.save.empty()) models::check_writable(options.save);
    if (!options.log.empty()) log.emplace(options.log);
  }
  std::vector<Listener*> listeners() {
    return log ? std::vector<Listener*>{&*log, &progress} : std::vector<Listener*>{&progress};
  }

  std::optional<StepLog> log;
  Progress progress;
};

void train(Session& session, int argc, char** argv, const std::optional<std::string>& problem) {
  Options options;
  std::unique_ptr<Job> job;
  std::optional<Outputs> outputs;
  together(session, [&] {
    if (problem) throw UsageError(*problem);
    options = parse_options(argc, argv);
    job = std::make_unique<Job>(options, session.rank(), session.size());
    if (session.rank() == 0) outputs.emplace(options, *job);
  });
  check_same(session, job->agreed());

  if (outputs) {
    if (outputs->log) outputs->log->begin();
    print(job->description());
  }
  Trainer trainer(session, options, *job, outputs ? outputs->listeners() : std::vector<Listener*>{});
  const bool finished = trainer.run();
  together(session, [&] {
    if (!outputs) return;
    if (finished && !options.save.empty()) models::save_parameters(options.save, job->model());
    if (outputs->log) outputs->log->close();
  });
  together(session, [&] {  // the files come first
    if (outputs) print(outputs->progress.summary(session.size()));
    check_stdout();
  });
}

int open_session_and_train(int argc, char** argv) {
  std::optional<std::string> problem;
  Session session(settings_of_environment(problem));
  try {
    train(session, argc, argv, problem);
    return 0;
  } catch (const Stopped&) {
    return 1;
  }
}

/// Ends this process with a problem that could not be agreed on: no waiting for ranks that may be stuck.
[[noreturn]] void leave(const std::string& problem) {
  print_problem(problem);
  std::quick_exit(1);
}

/// The same for an error of the session, which other ranks got too. They would all say it, and where a rank left, the
/// others only know that it did. So those who know least wait; by then the launcher, which ends all ranks when one has
/// failed, has ended them.
[[noreturn]] void leave_in_turn(const Error& error) {
  constexpr std::chrono::seconds to_end_all{3};  // of mpirun, which asks processes to end after one second
  const int turn = (error.code() == ErrorCode::aborted ? 1 : 0) + (launched_rank() > 0 ? 1 : 0);
  std::this_thread::sleep_for(turn * to_end_all);
  leave(error.what());
}

}  // namespace
}  // namespace kolo::train

int main(int argc, char** argv) {
  using namespace kolo::train;
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of write(), as a full disk is
  std::signal(SIGPIPE, SIG_IGN);  // so is a pipe that nobody reads
  try {
    if (const auto text = requested_text(argc, argv)) {
      if (launched_rank() == 0) print(*text);
      check_stdout();
      return 0;
    }
    return open_session_and_train(argc, argv);
  } catch (const kolo::Error& error) {
    leave_in_turn(error);
  } catch (const std::exception& error) {
    leave(problem_of(error));
  }
}

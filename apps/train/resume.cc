#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/agreement.h"
#include "apps/cli/flags.h"
#include "apps/cli/terminal.h"
#include "apps/train/checkpoints.h"
#include "apps/train/run_state.h"

namespace kolo::train {
namespace {

using Json = nlohmann::json;
using models::CheckpointStore;
using models::StoredCheckpoint;
using models::StoredParts;

/// The best that can be read. A training that goes on from there sets newer ones aside: none of them may be better.
StoredCheckpoint best_of(const CheckpointStore& store, bool eval_only) {
  const auto best = store.best();
  if (!best) {
    throw UsageError(
        fmt::format("no checkpoint in {} says a held-out loss; train with --eval-every, or give --resume "
                    "without best",
                    store.folder().string()));
  }
  const std::int64_t step = best->checkpoint.step;
  if (!eval_only && best->doubtful_step > step) {
    throw UsageError(
        fmt::format("the checkpoint of step {} may be better than that of step {}, the best that can be read: {}, or "
                    "name one by --resume=STEP",
                    best->doubtful_step, step, best->doubt));
  }
  if (eval_only) report_doubt(*best);  // a training does as it begins to write
  return best->checkpoint;
}

/// The checkpoint that --resume names; of the newest ones the first of less than `below` steps. Nothing if there is
/// none. Errors: UsageError if one was asked for that is not there.
std::optional<StoredCheckpoint> asked_for(const CheckpointStore& store, const Options& options, std::int64_t below) {
  const std::string& which = options.resume;
  if (which == "best") return best_of(store, options.eval_only);
  const auto all = store.list();
  const std::string folder = store.folder().string();
  if (which == "newest") {
    const auto newest = std::ranges::find_if(all, [&](const auto& checkpoint) { return checkpoint.step < below; });
    return newest == all.end() ? std::nullopt : std::optional(*newest);
  }
  const auto found = std::ranges::find(all, cli::number_in<std::int64_t>(which), &StoredCheckpoint::step);
  if (found != all.end()) return *found;
  std::vector<std::int64_t> steps;
  for (const StoredCheckpoint& checkpoint : all) steps.push_back(checkpoint.step);
  throw UsageError(fmt::format("{} has no checkpoint of step {}; it has those of {}", folder, which,
                               steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", "))));
}

/// Of the newest the one before it may do; of one that was asked for by name the user decides. An evaluation changes
/// nothing: the folder may be that of a run that goes on.
void pass_over(const CheckpointStore& store, const StoredCheckpoint& checkpoint, const std::string& problem,
               const Options& options) {
  if (options.resume != "newest") {
    throw UsageError(
        fmt::format("the checkpoint of step {} is damaged ({}); name another by --resume=STEP, or give "
                    "--resume for the newest that is sound",
                    checkpoint.step, problem));
  }
  if (options.eval_only) {
    return cli::print_problem(fmt::format("the checkpoint of step {} is damaged ({}): evaluating the one before it",
                                          checkpoint.step, problem));
  }
  const std::string name = store.set_aside(checkpoint, "unusable");
  cli::print_problem(
      fmt::format("the checkpoint of step {} is damaged ({}): going on from the one before it; it is now called {}",
                  checkpoint.step, problem, name));
}

/// What rank 0 finds in its folder.
struct Candidate {
  std::optional<StoredCheckpoint> checkpoint;
  std::string manifest, problem;
  models::CheckpointHold hold;
};

Candidate next_candidate(const CheckpointStore& store, const Options& options, std::int64_t below) {
  Candidate found{asked_for(store, options, below), {}, {}, {}};
  if (!found.checkpoint) return found;
  found.hold = models::CheckpointHold(*found.checkpoint);
  if (models::is_certainly_missing(found.checkpoint->folder)) return next_candidate(store, options, below);
  const auto refuse = [&](const std::exception& error) {
    throw UsageError(fmt::format("cannot resume from {}: {}", found.checkpoint->folder.string(), error.what()));
  };
  try {
    found.manifest = to_text(open_checkpoint(*found.checkpoint));
  } catch (const models::OtherFormat& error) {
    refuse(error);
  } catch (const models::Unreadable& error) {
    refuse(error);
  } catch (const std::bad_alloc&) {  // says nothing of the checkpoint
    throw;
  } catch (const std::exception& error) {
    found.problem = cli::problem_of(error);
  }
  return found;
}

/// Rank 0's, with the path that this rank has for it.
Candidate shared_candidate(Session& session, const CheckpointStore& store, const Options& options, std::int64_t below) {
  Candidate found;
  cli::collectively(session, [&] {
    if (session.rank() == 0) found = next_candidate(store, options, below);
  });
  const bool any = found.checkpoint.has_value();
  const Json said{{"step", any ? found.checkpoint->step : -1},
                  {"name", any ? found.checkpoint->folder.filename().string() : ""},
                  {"manifest", found.manifest},
                  {"problem", found.problem}};
  const Json heard = Json::parse(
      session.broadcast_object("checkpoint to resume from", said.dump(-1, ' ', false, Json::error_handler_t::replace)));
  const auto step = heard.at("step").get<std::int64_t>();
  if (step < 0) return {};
  return {StoredCheckpoint{step, store.folder() / heard.at("name").get<std::string>()},
          heard.at("manifest").get<std::string>(), heard.at("problem").get<std::string>(), std::move(found.hold)};
}

/// Rank 0 has seen each part and its size. A rank that does not is no reason to set a checkpoint aside.
void check_visible(const StoredParts& stored, int rank) {
  for (std::size_t part = 0; part < stored.manifest().parts.size(); ++part) {
    if (!problem_of_size(stored.path_of(part), stored.manifest().parts[part])) continue;
    throw UsageError(
        fmt::format("rank {} does not see {} as rank 0 does; name a folder on a file system that all "
                    "ranks share",
                    rank, stored.path_of(part).string()));
  }
}

/// The parts are dealt to the ranks; returns the first problem that any of them finds, or nothing.
std::string problem_of_parts(Session& session, StoredParts& stored) {
  std::string mine;
  const auto ranks = static_cast<std::size_t>(session.size());
  cli::collectively(session, [&] {
    for (auto part = static_cast<std::size_t>(session.rank()); part < stored.manifest().parts.size(); part += ranks) {
      if (mine.empty()) mine = stored.problem_of(part).value_or("");
    }
  });
  for (const std::string& problem : session.all_gather_object("problems of a checkpoint", mine)) {
    if (!problem.empty()) return problem;
  }
  return {};
}

/// A checkpoint that is sound in all its parts, and stays until it is read.
struct Sound {
  StoredParts parts;
  models::CheckpointHold hold;  // rank 0's
};

/// The one to resume from; nothing if there is none.
std::optional<Sound> sound_checkpoint(Session& session, const CheckpointStore& store, const Options& options) {
  std::int64_t below = std::numeric_limits<std::int64_t>::max();
  while (true) {
    Candidate found = shared_candidate(session, store, options, below);
    if (!found.checkpoint) return std::nullopt;
    std::string problem = found.problem;
    if (problem.empty()) {
      std::optional<StoredParts> stored;
      cli::collectively(session, [&] {
        stored.emplace(found.checkpoint->folder, models::parse_manifest(found.manifest));
        check_visible(*stored, session.rank());
      });
      problem = problem_of_parts(session, *stored);
      if (problem.empty()) return Sound{std::move(*stored), std::move(found.hold)};
    }
    found.hold = {};  // nobody needs it any more
    cli::collectively(session, [&] {
      if (session.rank() == 0) pass_over(store, *found.checkpoint, problem, options);
    });
    below = found.checkpoint->step;
  }
}

}  // namespace

void report_doubt(const models::BestCheckpoint& best) {
  if (best.doubt.empty()) return;
  cli::print_problem(
      fmt::format("the best checkpoint that can be read is that of step {}: {}", best.checkpoint.step, best.doubt));
}

Resumed resume(Session& session, Job& job) {
  const Options& options = job.options();
  const CheckpointStore store(options.checkpoint);
  const bool first = session.rank() == 0;
  auto sound = sound_checkpoint(session, store, options);
  if (!sound) {
    cli::collectively(session, [&] {
      if (options.eval_only)
        throw UsageError(fmt::format("no usable checkpoint in {}: there is nothing to evaluate", options.checkpoint));
    });
    if (first)
      cli::print(fmt::format("resume    no usable checkpoint in {}: starting at step 0\n", options.checkpoint));
    return {};
  }
  StoredParts& stored = sound->parts;
  std::string text;
  cli::collectively(session, [&] {
    if (first) text = models::text_of(stored.folder() / models::state_file);
  });
  text = session.broadcast_object("state of the checkpoint", text);
  RunState run;
  const auto& measured = stored.manifest().held_out;
  cli::collectively(session, [&] { run = restore_state(text, measured, job); });
  cli::collectively(session, [&] {
    options.eval_only ? stored.check_fit(job.model()) : stored.check_fit(job.model(), job.optimizer());
    if (first) stored.read_values(job.model());  // they are broadcast when the training begins
    if (!options.eval_only) stored.read_state(job.optimizer(), job.parallel().shards());
  });
  if (first) {
    std::string said = fmt::format("resume    from step {} of {}\n", run.steps_done, options.checkpoint);
    for (const std::string& difference : run.differences) said += fmt::format("          {}\n", difference);
    cli::print(said);
  }
  return {.steps_done = run.steps_done, .lacks_evaluation = !measured && job.evaluation_due(run.steps_done)};
}

void check_no_checkpoints(const CheckpointStore& store) {
  const auto found = store.list();
  if (found.empty()) return;
  throw UsageError(fmt::format(
      "{} holds checkpoints already (the newest of step {}); add --resume to go on from it, or name another "
      "folder",
      store.folder().string(), found.front().step));
}

}  // namespace kolo::train

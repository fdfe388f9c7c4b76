#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/cli/agreement.h"
#include "apps/cli/terminal.h"
#include "apps/train/checkpoints.h"
#include "apps/train/run_state.h"
#include "models/checkpoint/safetensors.h"
#include "models/util/atomic_file.h"
#include "models/util/error.h"
#include "models/util/headroom.h"

namespace kolo::train {
namespace {

/// A word that no other run of these checkpoints has.
std::string new_run() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:x}-{:x}", std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), ::getpid());
}

std::vector<std::string> set_newer_aside(const models::CheckpointStore& store, std::int64_t steps_done) {
  std::vector<std::string> names;
  for (const models::StoredCheckpoint& checkpoint : store.list()) {
    if (checkpoint.step > steps_done) names.push_back(store.set_aside(checkpoint, "superseded"));
  }
  return names;
}

}  // namespace

CheckpointWriter::CheckpointWriter(Session& session, Job* job, std::int64_t stored_at)
    : session_(&session),
      job_(job),
      active_(!job->options().checkpoint.empty() && !job->options().eval_only),
      part_{static_cast<std::size_t>(session.rank()), static_cast<std::size_t>(session.size())},
      stored_at_(stored_at) {}

/// Rank 0 clears the folder up and names the run; then all make sure that they see one folder.
void CheckpointWriter::prepare(std::int64_t steps_done) {
  const Options& options = job_->options();
  const bool first = session_->rank() == 0;
  std::string run;
  cli::collectively(*session_, [&] {
    if (!first) return;
    const models::CheckpointStore store(options.checkpoint);
    store.remove_leftovers();
    for (const std::string& name : set_newer_aside(store, steps_done))
      cli::print(fmt::format("          a newer checkpoint is now called {}\n", name));
    run = new_run();
  });
  run = session_->broadcast_object("name of the run", run);
  store_.emplace(options.checkpoint, options.keep, run);
  if (const auto best = look_for_best()) report_doubt(*best);
  const auto sign = store_->folder() / (".writing-sign-" + run);
  cli::collectively(*session_, [&] {
    if (first) models::write_atomic_file(sign, "");
  });
  cli::collectively(*session_, [&] {
    std::error_code ignored;
    if (!std::filesystem::exists(sign, ignored)) {
      throw models::ModelError(
          fmt::format("rank {} does not see in {} what rank 0 has written there; name a folder on a file system that "
                      "all ranks share",
                      session_->rank(), store_->folder().string()));
    }
    models::check_writable(store_->folder() / fmt::format(".writing-sign-{}-{}", run, session_->rank()));
    tensors_ = models::cut_tensors(job_->model(), job_->optimizer(), part_.of);
    const std::size_t needed = options.every || options.eval_every ? snapshots_.size() : 1;
    for (std::size_t i = 0; i < needed; ++i) {
      snapshots_[i].copy(tensors_, part_.index, job_->model(), job_->optimizer());
      free_.push_back(&snapshots_[i]);
    }
    thread_ = models::start_thread("writes checkpoints", [this] { this->run(); });
  });
  std::error_code ignored;
  if (first) std::filesystem::remove(sign, ignored);
}

CheckpointWriter::~CheckpointWriter() {
  const std::lock_guard lock(mutex_);
  writes_.clear();
  stop_ = true;
  changed_.notify_all();
}

bool CheckpointWriter::due(std::int64_t steps_done, bool asked) const {
  const auto& every = job_->options().every;
  return active_ && stored_at_ != steps_done &&
         (asked || steps_done == job_->last_step() || (every && steps_done % *every == 0));
}

bool CheckpointWriter::measured(std::int64_t steps_done, const models::HeldOut& held_out) {
  measured_at_ = steps_done;
  measured_ = held_out;
  if (!active_ || !std::isfinite(held_out.loss)) return false;
  const bool is_stored = stored_at_ == steps_done;
  if (is_stored) note_held_out();
  if (!job_->options().eval_every) return false;
  if (best_is_gone()) look_for_best();
  const bool is_best = !best_ || best_->of != held_out.of || held_out.loss < best_->loss;
  if (!is_best) return false;
  best_ = held_out;
  best_at_ = steps_done;
  return !is_stored;
}

/// Whether the checkpoint of the lowest loss is neither there nor on its way: it was lost, or somebody has removed it.
bool CheckpointWriter::best_is_gone() {
  std::int64_t gone = 0;
  if (part_.index == 0 && best_) {
    std::unique_lock lock(mutex_);
    const bool on_its_way = on_their_way_.contains(best_at_);
    lock.unlock();
    gone = !on_its_way && store_->lacks(best_at_) ? 1 : 0;
  }
  session_->all_reduce("best checkpoint is gone", view_scalar(gone));
  return gone > 0;
}

/// In the folder, as rank 0 sees it, which alone returns it. If it cannot tell there is none, and the next one
/// evaluated is stored.
std::optional<models::BestCheckpoint> CheckpointWriter::look_for_best() {
  std::optional<models::BestCheckpoint> found;
  std::int64_t sees_all = 1;
  try {
    if (part_.index == 0) found = store_->best();
  } catch (const std::exception& error) {
    cli::print_problem(fmt::format("cannot tell which checkpoint is the best: {}", cli::problem_of(error)));
    sees_all = 0;
  }
  session_->broadcast("best checkpoint is seen", view_scalar(sees_all));
  best_.reset();
  best_at_ = -1;
  if (sees_all == 0) return {};
  double loss = found ? found->held_out.loss : NAN;
  models::EvaluatedOn of = found ? found->held_out.of : models::EvaluatedOn{};
  if (found) best_at_ = found->checkpoint.step;
  session_->broadcast("best held-out loss", view_scalar(loss));
  for (std::int64_t* number : {&best_at_, &of.batches, &of.ranks, &of.examples})
    session_->broadcast("best checkpoint", view_scalar(*number));
  if (best_at_ >= 0) best_ = {loss, of};
  return found;
}

/// Into the checkpoint that is stored, or still on its way.
void CheckpointWriter::note_held_out() {
  std::unique_lock lock(mutex_);
  if (!unfinished_.empty() && unfinished_.back().step == measured_at_) {
    unfinished_.back().held_out = measured_;
    return;
  }
  lock.unlock();
  if (part_.index > 0) return;
  enqueue(commits_, [this, step = measured_at_, held_out = measured_] {
    try {
      store_->note_held_out(step, held_out);
    } catch (const std::exception& error) {
      cli::print_problem(
          fmt::format("the checkpoint of step {} does not say its held-out loss: {}", step, cli::problem_of(error)));
    }
  });
}

void CheckpointWriter::store(std::int64_t steps_done) {
  const auto start = Clock::now();
  stored_at_ = steps_done;
  wait_on_all([this] { return !free_.empty(); });
  const auto free_at = Clock::now();
  Unfinished part{.step = steps_done};
  if (measured_at_ == steps_done && std::isfinite(measured_.loss)) part.held_out = measured_;
  if (part_.index == 0) part.state = state_of(*job_, steps_done);
  std::unique_lock lock(mutex_);
  part.snapshot = free_.front();
  free_.pop_front();
  lock.unlock();
  part.snapshot->copy(tensors_, part_.index, job_->model(), job_->optimizer());
  ++taken_;
  longest_copy_ = std::max(longest_copy_, Clock::now() - free_at);
  waited_ += free_at - start;
  lock.lock();
  if (part_.index == 0) on_their_way_.insert(steps_done);
  Unfinished& stays = unfinished_.emplace_back(std::move(part));  // until it is settled, which is not before its fate
  writes_.push_back([this, &stays] { write(stays); });
  changed_.notify_all();
}

/// Returns once this rank's `done`, which is called under the lock, is true on every rank. The ranks keep asking each
/// other, so that none looks as if it had stalled.
void CheckpointWriter::wait_on_all(const std::function<bool()>& done) {
  constexpr std::chrono::milliseconds longest{50};
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, longest)) {
    std::unique_lock lock(mutex_);
    std::int64_t ranks_that_wait = done() ? 0 : 1;
    lock.unlock();
    session_->all_reduce("ranks that write checkpoints", view_scalar(ranks_that_wait));
    if (ranks_that_wait == 0) return;
    lock.lock();
    changed_.wait_for(lock, pause, done);
    if (done()) {  // others are slower
      lock.unlock();
      std::this_thread::sleep_for(pause);
    }
  }
}

/// On the thread.
void CheckpointWriter::write(Unfinished& part) {
  models::Seal seal, state_seal;
  std::optional<std::string> problem;
  try {
    seal = store_->write_part(part.step, tensors_, part_, *part.snapshot);
    if (part_.index == 0) state_seal = store_->write_state(part.step, part.state);
  } catch (const std::exception& error) {
    problem = cli::problem_of(error);
  }
  const std::lock_guard lock(mutex_);
  part.seal = seal;
  part.state_seal = state_seal;
  part.problem = problem.value_or("");
  part.fate = problem ? Fate::lost : Fate::on_disk;
  free_.push_back(part.snapshot);
}

WrittenParts CheckpointWriter::written() {
  const std::lock_guard lock(mutex_);
  if (unfinished_.empty()) return {};
  const Fate fate = unfinished_.front().fate;
  return {fate == Fate::on_disk ? 1.0 : 0.0, fate == Fate::lost ? 1.0 : 0.0};
}

void CheckpointWriter::settle(const WrittenParts& of_all) {
  if (of_all.on_disk + of_all.lost == session_->size()) settle_oldest();
}

/// The fate of the oldest checkpoint is known on all ranks.
void CheckpointWriter::settle_oldest() {
  std::unique_lock lock(mutex_);
  const Unfinished part = std::move(unfinished_.front());
  unfinished_.pop_front();
  last_problem_.reset();
  if (part.fate == Fate::lost) last_problem_ = part.problem;
  lock.unlock();
  try {
    cli::collectively(*session_, [&] {
      if (part.fate != Fate::lost) return;
      throw models::ModelError(fmt::format("the checkpoint of step {} is lost, those before it are as they were: {}{}",
                                           part.step, part_.of > 1 ? fmt::format("rank {}: ", part_.index) : "",
                                           part.problem));
    });
  } catch (const UsageError&) {  // one rank has said why
    lock.lock();
    ++lost_;
    lock.unlock();
    if (part_.index == 0) enqueue(commits_, [this, step = part.step] { drop(step); });
    return;
  }
  models::Manifest manifest = manifest_of(part);
  if (part_.index == 0) enqueue(commits_, [this, manifest = std::move(manifest)] { commit(manifest); });
}

/// Gathers what all ranks know of their files.
models::Manifest CheckpointWriter::manifest_of(const Unfinished& part) {
  std::vector<std::uint64_t> mine{part.seal.bytes, part.seal.crc}, all(2 * part_.of);
  session_->all_gather("parts of a checkpoint", view(mine), view(all));
  models::Manifest manifest{part.step, part.held_out, part.state_seal, {}, tensors_};
  for (std::size_t rank = 0; rank < part_.of; ++rank)
    manifest.parts.push_back({all[2 * rank], static_cast<std::uint32_t>(all[2 * rank + 1])});
  return manifest;
}

/// On rank 0's thread.
void CheckpointWriter::commit(const models::Manifest& manifest) {
  try {
    store_->commit(manifest);
    const std::lock_guard lock(mutex_);
    on_their_way_.erase(manifest.step);
    last_problem_.reset();
  } catch (const std::exception& error) {
    const std::string problem = cli::problem_of(error);
    cli::print_problem(
        fmt::format("the checkpoint of step {} is lost, those before it are as they were: {}", manifest.step, problem));
    const std::lock_guard lock(mutex_);
    on_their_way_.erase(manifest.step);
    last_problem_ = problem;
    ++lost_;
  }
}

/// The same of one that is lost.
void CheckpointWriter::drop(std::int64_t step) {
  store_->drop(step);
  const std::lock_guard lock(mutex_);
  on_their_way_.erase(step);
}

void CheckpointWriter::complete() {
  while (!unfinished_.empty()) {  // only this thread changes their number
    wait_on_all([this] { return unfinished_.front().fate != Fate::writing; });
    settle_oldest();
  }
  if (active_) wait_on_all([this] { return commits_.empty() && writes_.empty() && !busy_; });
}

void CheckpointWriter::finish() {
  complete();
  cli::collectively(*session_, [this] {
    const std::lock_guard lock(mutex_);
    if (last_problem_)
      throw models::ModelError(fmt::format("the last checkpoint could not be written: {}", *last_problem_));
  });
}

std::string CheckpointWriter::summary() const {
  const std::lock_guard lock(mutex_);
  const std::int64_t complete = taken_ - lost_;
  if (complete == 0) return {};
  const auto ms = [](Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
  std::string text = fmt::format("stored    {} checkpoint{}, training stood still for at most {:.1f} ms to copy one",
                                 complete, complete == 1 ? "" : "s", ms(longest_copy_));
  if (ms(waited_) >= 50) text += fmt::format(", and {:.1f} s in all for a slow disk", ms(waited_) / 1000);
  return text + "\n";
}

void CheckpointWriter::enqueue(std::deque<std::function<void()>>& queue, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  queue.push_back(std::move(task));
  changed_.notify_all();
}

void CheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !commits_.empty() || !writes_.empty(); });
    auto& queue = commits_.empty() ? writes_ : commits_;
    if (queue.empty()) return;
    const std::function<void()> task = std::move(queue.front());
    queue.pop_front();
    busy_ = true;
    lock.unlock();
    task();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace kolo::train

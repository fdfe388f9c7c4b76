#include "models/checkpoint/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <system_error>
#include <thread>

#include "models/util/atomic_file.h"
#include "models/util/atomic_folder.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step-";
constexpr std::chrono::seconds patience{8};  // for others that lock what is needed
constexpr std::string_view unfinished_prefix = ".writing-", leaving = ".removing-";

std::string name_of(std::int64_t step) {
  return fmt::format("{}{:09}", prefix, step);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

/// What is in a folder; nothing if there is none. Errors: ModelError if it is something else, or cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  if (is_certainly_missing(folder)) return found;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    found.push_back(at->path());
  if (!error) return found;
  throw ModelError(fmt::format("cannot read {} ({}); name a folder for checkpoints", folder.string(), error.message()));
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse_to_write(folder, error.message());
}

/// A checkpoint, and the loss that its manifest says: none, or it is missing or damaged.
struct Said {
  StoredCheckpoint checkpoint;
  std::optional<HeldOut> held_out;
  std::string problem;  // why the manifest, which is there, could not be read: another time it may say a loss
};

Said said_by(const StoredCheckpoint& checkpoint) {
  Said said{checkpoint, {}, {}};
  const fs::path manifest = checkpoint.folder / manifest_file;
  if (is_certainly_missing(manifest)) return said;
  try {
    said.held_out = parse_manifest(text_of(manifest)).held_out;
  } catch (const Unreadable& error) {
    said.problem = error.what();
  } catch (const ModelError&) {  // damaged
  }
  return said;
}

std::vector<Said> said_by_all(const std::vector<StoredCheckpoint>& checkpoints) {
  std::vector<Said> all;
  for (const StoredCheckpoint& checkpoint : checkpoints) all.push_back(said_by(checkpoint));
  return all;
}

/// Whether it says a loss, and no other one says a lower loss of the same examples, or the same one earlier.
bool is_lowest(const Said& said, const std::vector<Said>& all) {
  const auto is_lower = [&](const Said& other) {
    if (!other.held_out || other.held_out->of != said.held_out->of) return false;
    const double loss = said.held_out->loss;
    return other.held_out->loss < loss ||
           (other.held_out->loss == loss && other.checkpoint.step < said.checkpoint.step);
  };
  return said.held_out && std::ranges::none_of(all, is_lower);
}

/// The newest that could not be read; nothing: all could.
std::optional<Said> unread_of(const std::vector<Said>& all) {
  const auto unread = std::ranges::find_if_not(all, &std::string::empty, &Said::problem);
  return unread == all.end() ? std::nullopt : std::optional(*unread);
}

/// Of those that could be read, newest first.
std::optional<BestCheckpoint> best_of(const std::vector<Said>& all) {
  const auto newest = std::ranges::find_if(all, [](const Said& said) { return said.held_out.has_value(); });
  if (newest == all.end()) return std::nullopt;
  const auto best = std::ranges::find_if(newest, all.end(), [&](const Said& said) {
    return is_lowest(said, all) && said.held_out->of == newest->held_out->of;
  });
  BestCheckpoint found{best->checkpoint, *best->held_out};
  if (const auto unread = unread_of(all)) {
    found.doubt = unread->problem;
    found.doubtful_step = unread->checkpoint.step;
  }
  return found;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) refuse_to_write(to, error.message());
}

/// Whether the lock was acquired in time.
bool lock_within(int fd, std::chrono::seconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return true;  // a file system without locks
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// The lock that keeps others from reading a checkpoint; nothing if they still do after that time.
std::optional<FileDescriptor> lock_checkpoint(const fs::path& folder, std::chrono::seconds timeout) {
  FileDescriptor state(::open((folder / state_file).c_str(), O_RDWR | O_CLOEXEC));
  if (state && !lock_within(state.get(), timeout)) return std::nullopt;
  return state;
}

/// What is half removed has another name: it is no checkpoint any more. One that is held is left for the next time.
void remove_checkpoint(const fs::path& folder) {
  const auto lock = lock_checkpoint(folder, std::chrono::seconds(0));
  if (!lock) return;
  const fs::path leaving_name = folder.parent_path() / (std::string(leaving) + folder.filename().string());
  std::error_code error;
  fs::remove_all(leaving_name, error);
  fs::rename(folder, leaving_name, error);
  if (!error) fs::remove_all(leaving_name, error);
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder, const std::error_code& error) {
  throw ModelError(fmt::format("cannot write to {} ({}); name a folder that is writable and has room", folder.string(),
                               error.message()));
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path folder, std::int64_t keep, std::string run)
    : folder_(std::move(folder)), keep_(std::max<std::int64_t>(keep, 1)), run_(std::move(run)) {}

std::vector<StoredCheckpoint> CheckpointStore::list() const {
  std::vector<StoredCheckpoint> found;
  for (const fs::path& path : entries_of(folder_)) {
    const auto step = step_of(path.filename().string());
    std::error_code ignored;
    const bool may_be_one = fs::is_directory(path, ignored) || !fs::exists(path, ignored);  // of which no status is had
    if (step && may_be_one && !is_certainly_missing(path)) found.push_back({*step, path});
  }
  std::ranges::sort(found, std::greater(), &StoredCheckpoint::step);
  return found;
}

/// Beside a run that goes on one that is listed may be gone when it is read: then another may be the best by now.
std::optional<BestCheckpoint> CheckpointStore::best() const {
  while (true) {
    const std::vector<Said> all = said_by_all(list());
    const auto is_gone = [](const Said& said) {
      return !said.held_out && is_certainly_missing(said.checkpoint.folder);
    };
    if (std::ranges::any_of(all, is_gone)) continue;
    auto best = best_of(all);
    if (const auto unread = unread_of(all); !best && unread) throw ModelError(unread->problem);
    return best;
  }
}

Seal CheckpointStore::write_part(std::int64_t step, std::span<const CutTensor> tensors, const Part& part,
                                 const Snapshot& snapshot) const {
  const fs::path content = unfinished(step);
  make_folder(content);
  return models::write_part(content, tensors, part, snapshot);
}

Seal CheckpointStore::write_state(std::int64_t step, std::string_view text) const {
  const fs::path content = unfinished(step);
  make_folder(content);
  write_atomic_file(content / state_file, text);
  Seal seal;
  seal.add(text);
  return seal;
}

void CheckpointStore::commit(const Manifest& manifest) const {
  AtomicFolder content = AtomicFolder::of_filled(unfinished(manifest.step), folder_ / name_of(manifest.step));
  for (std::size_t part = 0; part < manifest.parts.size(); ++part) {
    const Part of{part, manifest.parts.size()};
    if (const auto problem = problem_of_size(content.path() / file_of(of), manifest.parts[part])) {
      throw ModelError(fmt::format(
          "{} does not have what rank {} has written there ({}); name a folder on a file system that all ranks share",
          folder_.string(), part, *problem));
    }
  }
  write_atomic_file(content.path() / manifest_file, to_text(manifest));
  content.commit();
  remove_old();
}

bool CheckpointStore::lacks(std::int64_t step) const {
  return is_certainly_missing(folder_ / name_of(step) / manifest_file);
}

void CheckpointStore::note_held_out(std::int64_t step, const HeldOut& held_out) const {
  if (lacks(step)) return;
  const fs::path path = folder_ / name_of(step) / manifest_file;
  Manifest manifest = parse_manifest(text_of(path));
  manifest.held_out = held_out;
  write_atomic_file(path, to_text(manifest));
  remove_old();
}

void CheckpointStore::drop(std::int64_t step) const {
  std::error_code ignored;
  fs::remove_all(unfinished(step), ignored);
}

/// Those beyond the newest, but for the best, and those that may be it: where one cannot be read, also the best of
/// another kind. What cannot be listed is left for the next time.
void CheckpointStore::remove_old() const {
  std::vector<Said> all;
  try {
    all = said_by_all(list());
  } catch (const std::exception&) {
    return;
  }
  const auto best = best_of(all);
  for (auto i = static_cast<std::size_t>(keep_); i < all.size(); ++i) {
    const bool may_be_best =
        is_lowest(all[i], all) && (!best->doubt.empty() || all[i].held_out->of == best->held_out.of);
    if (!may_be_best && all[i].problem.empty()) remove_checkpoint(all[i].checkpoint.folder);
  }
}

void CheckpointStore::remove_leftovers() const {
  for (const fs::path& path : entries_of(folder_)) {
    const std::string name = path.filename().string();
    std::error_code ignored;
    if (name.starts_with(unfinished_prefix) || name.starts_with(leaving)) fs::remove_all(path, ignored);
  }
}

std::string CheckpointStore::set_aside(const StoredCheckpoint& checkpoint, std::string_view word) const {
  const auto lock = lock_checkpoint(checkpoint.folder, patience);
  if (!lock) {
    throw ModelError(fmt::format("{} is being read by another program; wait until that has ended, and start again",
                                 checkpoint.folder.string()));
  }
  const std::string first = fmt::format("{}-{}", word, checkpoint.folder.filename().string());
  std::string name = first;
  std::error_code ignored;
  for (int number = 2; fs::exists(fs::symlink_status(folder_ / name, ignored)); ++number)
    name = fmt::format("{}-{}", first, number);
  rename_folder(checkpoint.folder, folder_ / name);
  return name;
}

fs::path CheckpointStore::unfinished(std::int64_t step) const {
  return folder_ / fmt::format("{}{}{}{}", unfinished_prefix, name_of(step), run_.empty() ? "" : "-", run_);
}

Manifest open_checkpoint(const StoredCheckpoint& checkpoint) {
  Manifest manifest = parse_manifest(text_of(checkpoint.folder / manifest_file));
  if (manifest.step != checkpoint.step) throw ModelError(fmt::format("{} is of another step", manifest_file));
  for (std::size_t part = 0; part < manifest.parts.size(); ++part) {
    const Part of{part, manifest.parts.size()};
    if (const auto problem = problem_of_size(checkpoint.folder / file_of(of), manifest.parts[part]))
      throw ModelError(*problem);
  }
  if (const auto problem = problem_of_file(checkpoint.folder / state_file, manifest.state)) throw ModelError(*problem);
  return manifest;
}

/// Of its files the manifest may be replaced, and this one is not. A pipe in its place is not waited for.
CheckpointHold::CheckpointHold(const StoredCheckpoint& checkpoint)
    : file_(::open((checkpoint.folder / state_file).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  while (file_ && ::flock(file_.get(), LOCK_SH) != 0 && errno == EINTR) continue;
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) refuse_folder(folder, error);
  file_.reset(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file_) refuse_to_write(folder / ".lock", std::generic_category().message(errno));
  if (lock_within(file_.get(), patience)) return;
  throw ModelError(
      fmt::format("{} is in use by another run; wait until that has ended, or name another folder", folder.string()));
}

}  // namespace kolo::models

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

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/manifest.h"
#include "models/util/atomic_file.h"
#include "models/util/atomic_folder.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step-";
constexpr std::string_view unfinished = ".writing-", leaving = ".removing-";

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

void copy_tensor(std::string_view name, const Shape& shape, std::span<const float> values, SnapshotTensor& to) {
  to.name = name;
  to.shape = shape;
  to.values.resize(static_cast<std::size_t>(shape.elements()));
  if (values.size() == to.values.size()) std::ranges::copy(values, to.values.begin());
}

void write_tensors(const fs::path& path, const std::vector<SnapshotTensor>& tensors) {
  std::vector<NamedValues> named;
  for (const SnapshotTensor& tensor : tensors) named.push_back({tensor.name, tensor.shape, tensor.values});
  write_safetensors(path, named);
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) refuse_to_write(to, error.message());
}

/// What is half removed has another name: it is no checkpoint any more.
void remove_checkpoint(const fs::path& folder) {
  const fs::path leaving_name = folder.parent_path() / (std::string(leaving) + folder.filename().string());
  std::error_code error;
  fs::remove_all(leaving_name, error);
  fs::rename(folder, leaving_name, error);
  if (!error) fs::remove_all(leaving_name, error);
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

[[noreturn]] void refuse_folder(const std::filesystem::path& folder, const std::error_code& error) {
  throw ModelError(fmt::format("cannot write to {} ({}); name a folder that is writable and has room", folder.string(),
                               error.message()));
}

}  // namespace

void Snapshot::copy(const Model& model, Optimizer& from) {
  values.resize(model.parameters().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    copy_tensor(parameter.name, parameter.shape, parameter.value, values[i]);
  }
  const auto tensors = from.state();
  optimizer.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    copy_tensor(tensors[i].name, tensors[i].shape, tensors[i].values, optimizer[i]);
  }
}

std::vector<std::span<float>> Snapshot::optimizer_state() {
  std::vector<std::span<float>> tensors;
  for (SnapshotTensor& tensor : optimizer) tensors.emplace_back(tensor.values);
  return tensors;
}

CheckpointStore::CheckpointStore(fs::path folder, std::int64_t keep)
    : folder_(std::move(folder)), keep_(std::max<std::int64_t>(keep, 1)) {}

std::vector<StoredCheckpoint> CheckpointStore::list() const {
  std::vector<StoredCheckpoint> found;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder_, error))) return found;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const auto step = step_of(at->path().filename().string());
    std::error_code ignored;
    if (step && at->is_directory(ignored)) found.push_back({*step, at->path()});
  }
  if (error) {
    throw ModelError(
        fmt::format("cannot read {} ({}); name a folder for checkpoints", folder_.string(), error.message()));
  }
  std::ranges::sort(found, std::greater(), &StoredCheckpoint::step);
  return found;
}

void CheckpointStore::write(const Snapshot& snapshot) const {
  const std::string name = name_of(snapshot.step);
  AtomicFolder content(folder_ / (std::string(unfinished) + name), folder_ / name);
  write_tensors(content.path() / model_file, snapshot.values);
  write_tensors(content.path() / optimizer_file, snapshot.optimizer);
  write_atomic_file(content.path() / state_file, snapshot.state);
  write_manifest(content.path(), snapshot.step);
  content.commit();
  const auto all = list();
  for (std::size_t i = static_cast<std::size_t>(keep_); i < all.size(); ++i) remove_checkpoint(all[i].folder);
}

void CheckpointStore::remove_leftovers() const {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(unfinished) || name.starts_with(leaving)) leftovers.push_back(at->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

void CheckpointStore::set_aside(const StoredCheckpoint& checkpoint) const {
  const fs::path aside = folder_ / ("unusable-" + checkpoint.folder.filename().string());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  rename_folder(checkpoint.folder, aside);
}

std::string load_checkpoint(const StoredCheckpoint& checkpoint, const Model& model,
                            std::span<const OptimizerTensor> optimizer) {
  load_parameters(SafetensorsFile(checkpoint.folder / model_file), model);
  const SafetensorsFile file(checkpoint.folder / optimizer_file);
  for (const OptimizerTensor& tensor : optimizer) {
    const StoredTensor* const stored = file.find(tensor.name);
    if (stored == nullptr) {
      throw ModelError(fmt::format("{} has no {}; resume with the optimizer that wrote it", file.path().string(),
                                   in_quotes(tensor.name)));
    }
    file.read(*stored, tensor.values);
  }
  return read_state(checkpoint.folder);
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  constexpr std::chrono::seconds timeout{8};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) refuse_folder(folder, error);
  file_.reset(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file_) refuse_to_write(folder / ".lock", std::generic_category().message(errno));
  if (lock_within(file_.get(), timeout)) return;
  throw ModelError(
      fmt::format("{} is in use by another run; wait until that has ended, or name another folder", folder.string()));
}

}  // namespace kolo::models

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "models/error.h"
#include "models/safetensors.h"
#include "models/text.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view reason) {
  throw ModelError(fmt::format("cannot write {} ({}); name a file in a folder that is writable and has room",
                               path.string(), reason));
}
[[noreturn]] void fail_errno(const fs::path& path) {
  fail(path, std::generic_category().message(errno));
}

/// A new file beside `target`, gone again unless it is committed: renamed to `target`.
class NewFile {
 public:
  explicit NewFile(const fs::path& target) : target_(target) {
    std::error_code error;
    const fs::file_status status = fs::status(target, error);
    if (fs::exists(status) && !fs::is_regular_file(status)) fail(target, "it exists and is not a regular file");
    for (int attempt = 0; fd_ < 0; ++attempt) {  // a process that crashed may have left a file of our number behind
      path_ = target.string() + fmt::format(".tmp-{}-{}", ::getpid(), attempt);
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && (errno != EEXIST || attempt == 100)) fail_errno(target);
    }
  }
  ~NewFile() {
    if (fd_ >= 0) (void)::close(fd_);
    if (!committed_) (void)::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(fd_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_errno(target_);
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) fail_errno(target_);
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail_errno(target_);
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail_errno(target_);
    committed_ = true;
    sync_folder();
  }

 private:
  /// The rename lasts once the folder is on disk. Some file systems cannot sync a folder: the file itself is safe
  /// there.
  void sync_folder() const {
    const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)::fsync(fd);
    (void)::close(fd);
  }

  fs::path target_, path_;
  int fd_ = -1;
  bool committed_ = false;
};

std::string header_of(const std::vector<NamedValues>& tensors, const std::map<std::string, std::string>& metadata) {
  const auto text = [](std::string_view value) { return nlohmann::json(value).dump(); };
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
  std::uint64_t begin = 0;
  for (const NamedValues& tensor : tensors) {
    const std::uint64_t end = begin + tensor.values.size_bytes();
    const nlohmann::json shape(std::vector(tensor.shape.extents().begin(), tensor.shape.extents().end()));
    json += fmt::format("{}:{{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[{},{}]}},", text(tensor.name),
                        shape.dump(), begin, end);
    begin = end;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');  // so that tensors are aligned in a mapped file
  return json;
}

void check(const fs::path& path, const std::vector<NamedValues>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const NamedValues& tensor = sorted[i];
    if (i > 0 && sorted[i - 1].name == tensor.name)
      fail(path, fmt::format("two tensors are named {}", in_quotes(tensor.name)));
    if (tensor.name == "__metadata__") fail(path, "a tensor is named '__metadata__'");
    if (!tensor.shape.valid() || static_cast<std::size_t>(tensor.shape.elements()) != tensor.values.size()) {
      fail(path, fmt::format("tensor {} has {} values, which is not what its shape needs", in_quotes(tensor.name),
                             tensor.values.size()));
    }
  }
}

}  // namespace

void write_safetensors(const fs::path& path, std::span<const NamedValues> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<NamedValues> sorted(tensors.begin(), tensors.end());
  std::ranges::sort(sorted, {}, &NamedValues::name);
  check(path, sorted);
  std::string header;
  try {
    header = header_of(sorted, metadata);
  } catch (const nlohmann::json::exception&) {
    fail(path, "a name or the metadata is not UTF-8");
  }
  NewFile file(path);
  std::array<unsigned char, 8> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length.data(), length.size());
  file.write(header.data(), header.size());
  for (const NamedValues& tensor : sorted) file.write(tensor.values.data(), tensor.values.size_bytes());
  file.commit();
}

void check_writable(const fs::path& path) {
  const NewFile probe(path);
}

}  // namespace kolo::models

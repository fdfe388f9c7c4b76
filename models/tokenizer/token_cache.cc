#include "models/tokenizer/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "models/util/atomic_file.h"
#include "models/util/input_file.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

/// Reads files in parts, and hashes what it has read.
class TextFiles {
 public:
  explicit TextFiles(std::span<const fs::path> files) : files_(files) {}

  /// Calls `use` with each part, and whether it is the last one of its file. Returns a hash of everything.
  template <class Use>
  std::uint64_t read(Use use) const {
    constexpr std::size_t most = 1 << 20;
    detail::Hash hash;
    std::string part;
    for (const fs::path& path : files_) {
      const InputFile file(path, "give a file of text");
      hash.add(file.bytes());
      for (std::uint64_t at = 0; at < file.bytes(); at += part.size()) {
        part.resize(std::min<std::uint64_t>(most, file.bytes() - at));
        file.read(at, std::as_writable_bytes(std::span(part)));
        hash.add(std::string_view(part));
        use(std::string_view(part), at + part.size() == file.bytes());
      }
    }
    return hash.value();
  }

 private:
  std::span<const fs::path> files_;
};

constexpr std::size_t header_bytes = 128;

/// Of a .npy file of one dimension.
std::string npy_header(std::uint64_t count, bool wide) {
  constexpr std::size_t before = 10;
  const std::string text =
      fmt::format("{{'descr': '<u{}', 'fortran_order': False, 'shape': ({},), }}", wide ? 4 : 2, count);
  return fmt::format("\x93NUMPY\x01{}{}{}{:<{}}\n", '\0', static_cast<char>(header_bytes - before), '\0', text,
                     header_bytes - before - 1);
}

/// Whether a file is as long as its header says: somebody may have cut it. Also if it cannot be read now: then whoever
/// reads its tokens says why.
bool is_whole(const fs::path& path, bool wide) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is not waited for
  if (!file) return errno != ENOENT && errno != ENOTDIR;
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return true;
  const auto bytes = static_cast<std::uint64_t>(status.st_size), width = std::uint64_t{wide ? 4u : 2u};
  if (bytes < header_bytes || (bytes - header_bytes) % width != 0) return false;
  std::string header(header_bytes, '\0');
  if (::pread(file.get(), header.data(), header.size(), 0) < 0) return true;
  return header == npy_header((bytes - header_bytes) / width, wide);
}

/// Writes a .npy file of one dimension whose size is known at its end.
class NpyWriter {
 public:
  NpyWriter(const fs::path& path, bool wide) : file_(path), wide_(wide) {
    file_.write(npy_header(0, wide).data(), header_bytes);
  }

  void write(std::span<const std::int32_t> ids) {
    if (wide_) {
      file_.write(ids.data(), ids.size_bytes());
    } else {
      narrow_.assign(ids.begin(), ids.end());
      file_.write(narrow_.data(), narrow_.size() * sizeof narrow_[0]);
    }
    count_ += ids.size();
  }

  void commit() {
    file_.rewrite_beginning(npy_header(count_, wide_));
    file_.commit();
  }

 private:
  AtomicFile file_;
  bool wide_;
  std::uint64_t count_ = 0;
  std::vector<std::uint16_t> narrow_;
};

/// Held by the process that encodes; others wait for it. Where locks are not known nobody waits, and all encode the
/// same.
class EncodingLock {
 public:
  explicit EncodingLock(fs::path path)
      : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (!file_) refuse_to_write(path_, std::generic_category().message(errno));
    while (::flock(file_.get(), LOCK_EX) != 0 && errno == EINTR) continue;
  }
  ~EncodingLock() { (void)::unlink(path_.c_str()); }
  EncodingLock(const EncodingLock&) = delete;
  EncodingLock& operator=(const EncodingLock&) = delete;

 private:
  fs::path path_;
  FileDescriptor file_;
};

}  // namespace

fs::path encode_files(const Tokenizer& tokenizer, std::span<const fs::path> files, const fs::path& folder,
                      const std::function<void(std::uint64_t bytes)>& encodes) {
  constexpr std::uint64_t version = 1;  // of what is written; another one if ids change
  constexpr std::size_t enough = 1 << 16;
  const TextFiles texts(files);
  std::uint64_t bytes = 0;
  const std::uint64_t content = texts.read([&](std::string_view part, bool) { bytes += part.size(); });
  const std::uint64_t key = detail::Hash().add(version).add(tokenizer.fingerprint()).add(content).value();
  fs::path path = folder / fmt::format("{:016x}.npy", key);
  const bool wide = tokenizer.size() > 65536;
  if (is_whole(path, wide)) return path;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse_to_write(folder, error.message());
  const EncodingLock lock(folder / fmt::format("{:016x}.lock", key));
  if (is_whole(path, wide)) return path;
  if (encodes) encodes(bytes);
  NpyWriter writer(path, wide);
  TextEncoder encoder(tokenizer);
  std::vector<std::int32_t> ids;
  const std::uint64_t encoded = texts.read([&](std::string_view part, bool last) {
    encoder.add(part, last, ids);
    if (ids.size() < enough) return;
    writer.write(ids);
    ids.clear();
  });
  writer.write(ids);
  if (encoded != content)
    throw ModelError(fmt::format("{} changed while it was encoded; try again when it is complete",
                                 files.size() == 1 ? files[0].string() : "one of the texts"));
  writer.commit();
  return path;
}

}  // namespace kolo::models

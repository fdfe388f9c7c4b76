#include "models/data/token_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <kolo/detail/hash.h>

#include "models/util/file_descriptor.h"
#include "models/util/headroom.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

std::int64_t width_of(TokenType type) {
  return std::int64_t{1} << static_cast<unsigned>(type);
}

[[noreturn]] void refuse(const fs::path& path, std::string_view reason) {
  throw ModelError(
      fmt::format("cannot use {} ({}); give a file of tokens, or a folder of such files", path.string(), reason));
}

std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.')) files.push_back(entry.path());
  }
  if (error) refuse(path, error.message());
  if (files.empty()) refuse(path, "it has no files");
  std::ranges::sort(files);
  return files;
}

}  // namespace

/// One file, mapped.
class TokenStream::File {
 public:
  explicit File(fs::path path) : path_(std::move(path)) {
    const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is not waited for
    if (!file) refuse(path_, std::generic_category().message(errno));
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) refuse(path_, std::generic_category().message(errno));
    if (!S_ISREG(status.st_mode)) refuse(path_, "it is not a regular file");
    if (status.st_size == 0) refuse(path_, "it is empty");
    bytes_ = static_cast<std::size_t>(status.st_size);
    memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory_ == MAP_FAILED && errno == ENOMEM) refuse_memory(fmt::format("a view of {}", path_.string()));
    if (memory_ == MAP_FAILED) refuse(path_, std::generic_category().message(errno));
  }
  ~File() {
    if (memory_ != MAP_FAILED) (void)::munmap(memory_, bytes_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const fs::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(memory_), bytes_}; }

  std::int64_t first = 0;  ///< tokens of the stream before it
  std::int64_t count = 0;  ///< tokens

 private:
  fs::path path_;
  void* memory_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

TokenStream::TokenStream(const fs::path& path, TokenType type) : type_(type) {
  open(files_of(path));
}
TokenStream::TokenStream(std::span<const fs::path> files, TokenType type) : type_(type) {
  open(files);
}
TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&&) noexcept = default;

void TokenStream::open(std::span<const fs::path> files) {
  for (const fs::path& path : files) {
    auto file = std::make_unique<File>(path);
    const auto bytes = static_cast<std::int64_t>(file->bytes().size());
    if (bytes % width_of(type_) != 0) {
      refuse(path, fmt::format("{} bytes are not a whole number of {} tokens", bytes, to_string(type_)));
    }
    file->first = count_;
    file->count = bytes / width_of(type_);
    count_ += file->count;
    files_.push_back(std::move(file));
  }
}

namespace {

/// Returns the index of the first token that is not below the vocabulary; out.size() if there is none.
template <class Token>
std::size_t widen(const std::byte* in, std::int64_t vocabulary, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token{};
    std::memcpy(&token, in + i * sizeof(Token), sizeof(Token));
    if (static_cast<std::int64_t>(token) >= vocabulary) return i;
    out[i] = static_cast<std::int32_t>(token);
  }
  return out.size();
}

std::size_t widen(TokenType type, const std::byte* in, std::int64_t vocabulary, std::span<std::int32_t> out) {
  if (type == TokenType::bytes) return widen<std::uint8_t>(in, vocabulary, out);
  return type == TokenType::u16 ? widen<std::uint16_t>(in, vocabulary, out) : widen<std::uint32_t>(in, vocabulary, out);
}

/// The value of the token that `in` begins with.
std::uint32_t value_of(TokenType type, const std::byte* in) {
  std::uint32_t value = 0;
  std::memcpy(&value, in, static_cast<std::size_t>(width_of(type)));
  return value;
}

}  // namespace

void TokenStream::copy(std::int64_t first, std::int64_t vocabulary, std::span<std::int32_t> out) const {
  auto file = std::ranges::upper_bound(files_, first, {}, [](const auto& f) { return f->first; }) - 1;
  for (; !out.empty(); ++file) {
    const std::int64_t at = first - (*file)->first;
    const auto count = std::min<std::size_t>(out.size(), static_cast<std::size_t>((*file)->count - at));
    const std::byte* const in = (*file)->bytes().data() + at * width_of(type_);
    const std::size_t good = widen(type_, in, vocabulary, out.first(count));
    if (good < count) {
      const auto place = static_cast<std::int64_t>(good);
      throw ModelError(fmt::format(
          "token {} of {} is {}, and the vocabulary ends at {}; give a larger --vocab, or --tokens as they "
          "are in the file",
          at + place, (*file)->path().string(), value_of(type_, in + place * width_of(type_)), vocabulary - 1));
    }
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

std::uint64_t TokenStream::fingerprint() const {
  constexpr std::size_t sample = 4096;
  detail::Hash hash;
  for (const auto& file : files_) {
    const auto bytes = file->bytes();
    hash.add(bytes.size());
    for (const std::size_t from : {std::size_t{0}, bytes.size() / 2, bytes.size() - std::min(sample, bytes.size())})
      hash.add(bytes.subspan(from, std::min(sample, bytes.size() - from)));
  }
  return hash.value();
}

TokenWindows::TokenWindows(std::shared_ptr<const TokenStream> stream, const Settings& settings)
    : stream_(std::move(stream)), settings_(settings) {}

std::int64_t TokenWindows::count() const {
  return std::max<std::int64_t>(settings_.part.count - 1, 0) / settings_.positions;
}

void TokenWindows::gather(std::span<const std::int64_t> examples, std::int64_t, BatchStorage& to) const {
  const auto positions = static_cast<std::size_t>(settings_.positions);
  to.examples = static_cast<std::int64_t>(examples.size());
  to.tokens.resize(examples.size() * positions);
  to.targets.resize(to.tokens.size());
  std::vector<std::int32_t> window(positions + 1);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    stream_->copy(settings_.part.first + examples[i] * settings_.positions, settings_.vocabulary, window);
    const auto at = static_cast<std::ptrdiff_t>(i * positions);
    std::copy(window.begin(), window.end() - 1, to.tokens.begin() + at);
    std::copy(window.begin() + 1, window.end(), to.targets.begin() + at);
  }
}

}  // namespace kolo::models

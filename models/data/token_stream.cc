#include "models/data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include <kolo/detail/hash.h>

#include "models/util/input_file.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view advice = "give a file of tokens, or a folder of such files";

/// Returns the index of the first token that is not below the vocabulary; out.size() if there is none.
template <class Token>
std::size_t widen(const std::byte* in, std::int64_t vocabulary, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token{};
    std::memcpy(&token, in + i * sizeof(Token), sizeof(Token));
    if (token >= static_cast<std::uint64_t>(vocabulary)) return i;
    out[i] = static_cast<std::int32_t>(token);
  }
  return out.size();
}

std::size_t widen(TokenType type, const std::byte* in, std::int64_t vocabulary, std::span<std::int32_t> out) {
  switch (type) {
    case TokenType::bytes: return widen<std::uint8_t>(in, vocabulary, out);
    case TokenType::u16: return widen<std::uint16_t>(in, vocabulary, out);
    case TokenType::u32: return widen<std::uint32_t>(in, vocabulary, out);
    default: return widen<std::uint64_t>(in, vocabulary, out);
  }
}

/// The value of the token that `in` begins with.
std::uint64_t value_of(TokenType type, const std::byte* in) {
  std::uint64_t value = 0;
  std::memcpy(&value, in, static_cast<std::size_t>(width_of(type)));
  return value;
}

}  // namespace

std::vector<fs::path> token_files(const fs::path& path) {
  std::error_code error, why, ignored;
  if (!fs::is_directory(path, error)) return {path};
  const auto refuse = [](const fs::path& what, std::string_view reason) {
    throw ModelError(fmt::format("cannot use {} ({}); {}", what.string(), reason, advice));
  };
  std::vector<fs::path> files;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with('.')) continue;
    const fs::file_status status = at->status(why);
    if (fs::is_regular_file(status)) files.push_back(at->path());
    const bool leads_nowhere = status.type() == fs::file_type::not_found && at->is_symlink(ignored);
    if (status.type() == fs::file_type::none || leads_nowhere) refuse(at->path(), why.message());  // it may be one
  }
  if (error) refuse(path, error.message());
  if (files.empty()) refuse(path, "it has no files");
  std::ranges::sort(files);
  return files;
}

TokenStream::TokenStream(std::span<const fs::path> files, std::optional<TokenType> type) {
  constexpr std::size_t most_open = 128;  // of the 1024 that a process usually may have
  for (const fs::path& path : files) {
    InputFile file(path, advice, files.size() <= most_open);
    const TokenLayout layout = token_layout(file, type);
    if (files_.empty()) type_ = layout.type;
    if (layout.type != type_)
      file.refuse(fmt::format("it holds {}, and {} holds {}", to_string(layout.type),
                              files_.front().file.path().string(), to_string(type_)));
    files_.push_back({std::move(file), layout.first_byte, count_, layout.count});
    count_ += layout.count;
  }
}

void TokenStream::copy(std::int64_t first, std::int64_t vocabulary, std::span<std::int32_t> out) const {
  std::vector<std::byte> bytes;
  for (auto file = std::ranges::upper_bound(files_, first, {}, &File::first) - 1; !out.empty(); ++file) {
    const std::int64_t at = first - file->first;
    const auto count = std::min<std::size_t>(out.size(), static_cast<std::size_t>(file->count - at));
    bytes.resize(count * static_cast<std::size_t>(width_of(type_)));
    file->file.read(file->first_byte + static_cast<std::uint64_t>(at * width_of(type_)), bytes);
    const std::size_t good = widen(type_, bytes.data(), vocabulary, out.first(count));
    if (good < count) {
      const auto place = static_cast<std::int64_t>(good);
      throw ModelError(
          fmt::format("token {} of {} is {}, and the vocabulary ends at {}; give the model a larger vocabulary, or "
                      "--tokens as they are in the file",
                      at + place, file->file.path().string(), value_of(type_, bytes.data() + place * width_of(type_)),
                      vocabulary - 1));
    }
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

std::uint64_t TokenStream::fingerprint() const {
  constexpr std::uint64_t sample = 4096;
  detail::Hash hash;
  for (const File& file : files_) {
    const std::uint64_t bytes = file.file.bytes();
    hash.add(bytes);
    for (const std::uint64_t from : {std::uint64_t{0}, bytes / 2, bytes - std::min(sample, bytes)}) {
      std::vector<std::byte> part(std::min(sample, bytes - from));
      file.file.read(from, part);
      hash.add(std::span<const std::byte>(part));
    }
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

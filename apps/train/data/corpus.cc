#include "apps/train/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include <kolo/detail/cache_folder.h>
#include <kolo/detail/hash.h>

#include "apps/cli/terminal.h"
#include "apps/cli/version.h"
#include "apps/memory.h"
#include "models/data/dataset.h"
#include "models/data/images.h"
#include "models/data/token_stream.h"
#include "models/tokenizer/token_cache.h"
#include "models/util/atomic_file.h"

namespace kolo::train {
namespace {

namespace fs = std::filesystem;

std::uint64_t fingerprint_of(const models::DataSplit& data) {
  detail::Hash fingerprint;
  for (const models::Dataset* set : {&data.train, &data.held_out}) {
    fingerprint.add(std::as_bytes(std::span(set->inputs)));
    fingerprint.add(std::as_bytes(std::span(set->labels)));
  }
  return fingerprint.value();
}

/// The sources that this program was built from: the default text.
std::vector<fs::path> own_sources() {
  std::vector<fs::path> files;
  for (const char* folder : {"apps", "bench", "models", "ops", "runtime", "tests"}) {
    std::error_code error;
    for (fs::recursive_directory_iterator at(fs::path(cli::source_folder) / folder, error), end; !error && at != end;
         at.increment(error)) {
      const auto ending = at->path().extension();
      if ((ending == ".cc" || ending == ".h") && at->is_regular_file() && at->file_size() > 0)
        files.push_back(at->path());
    }
  }
  std::ranges::sort(files);
  if (files.empty())
    throw UsageError("there is no text to train on (the project's sources are not here); give --data a file");
  return files;
}

/// A stream of tokens, and where it is from.
struct Source {
  std::shared_ptr<const models::TokenStream> stream;
  std::string name;
  std::string kind;  ///< of tokens
};

std::shared_ptr<const models::TokenStream> stream_of(const fs::path& file) {
  return std::make_shared<models::TokenStream>(std::span(&file, 1), std::nullopt);
}

/// A folder of this process alone, which goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (fs::temp_directory_path(error) / "kolo-tokens-XXXXXX").string();
    if (error) models::refuse_to_write(path_, error.message());
    if (::mkdtemp(path_.data()) == nullptr) models::refuse_to_write(path_, std::generic_category().message(errno));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The tokens of a text, from the cache. Where that cannot be written they are this process's alone: their file has no
/// name any more, and ends with the stream.
std::shared_ptr<const models::TokenStream> encoded(const models::Tokenizer& tokenizer,
                                                   const std::vector<fs::path>& files) {
  const std::string cache = detail::cache_folder();
  if (cache.empty())
    throw UsageError(
        "there is no folder for encoded text (HOME is not set); set XDG_CACHE_HOME to one that is writable");
  try {
    return stream_of(models::encode_files(tokenizer, files, fs::path(cache) / "tokens", [](std::uint64_t bytes) {
      constexpr std::uint64_t takes_a_while = 16 << 20;
      if (bytes >= takes_a_while) cli::print(fmt::format("data      encoding {}, once\n", format_bytes(bytes)));
    }));
  } catch (const models::Unwritable& error) {
    if (cli::launched_rank() == 0)
      cli::print_problem(fmt::format("{}: going on with tokens that are not cached", error.problem()));
  }
  const TemporaryFolder folder;
  return stream_of(models::encode_files(tokenizer, files, folder.path()));
}

Source open_source(const Options& options, const std::string& path, const models::Tokenizer* tokenizer) {
  if (path.empty() && options.tokens.value_or(models::TokenType::bytes) != models::TokenType::bytes)
    throw UsageError("--tokens is the dtype of --data; add --data");
  const std::vector<fs::path> files = path.empty() ? own_sources() : models::token_files(path);
  std::shared_ptr<const models::TokenStream> stream = std::make_shared<models::TokenStream>(files, options.tokens);
  std::string kind(to_string(stream->type()));
  if (tokenizer != nullptr && stream->type() == models::TokenType::bytes) {
    stream = encoded(*tokenizer, files);
    kind = "tokens";
  }
  const std::string_view plural = files.size() == 1 ? "" : "s";
  if (path.empty()) return {stream, fmt::format("the project's own sources, {} file{}", files.size(), plural), kind};
  return {stream, files.size() == 1 ? path : fmt::format("{}, {} files", path, files.size()), kind};
}

/// With a tokenizer, the bytes of its tokens; else one each, or none if tokens are numbers that nothing explains.
std::vector<std::int32_t> bytes_of_targets(const models::Tokenizer* tokenizer, bool are_bytes,
                                           std::int64_t vocabulary) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(vocabulary) + 1, are_bytes ? 1 : 0);
  all[0] = 0;
  if (tokenizer == nullptr) return all;
  const std::vector<std::int32_t> known = tokenizer->byte_counts();
  std::ranges::copy(known, all.begin() + 1);
  return all;
}

}  // namespace

Corpus read_images(const Options& options) {
  Corpus corpus;
  corpus.images = std::make_unique<models::DataSplit>(options.data.empty() ? models::render_digits()
                                                                           : models::read_digits(options.data));
  const auto augment = options.augment ? std::optional(options.seed) : std::nullopt;
  corpus.train = std::make_unique<models::Images>(corpus.images->train, augment);
  corpus.held_out = std::make_unique<models::Images>(corpus.images->held_out);
  corpus.description = corpus.images->description;
  corpus.fingerprint = fingerprint_of(*corpus.images);
  corpus.bytes_of_targets.resize(static_cast<std::size_t>(corpus.images->train.classes) + 1);
  return corpus;
}

Corpus read_tokens(const Options& options, const models::Tokenizer* tokenizer, std::int64_t positions,
                   std::int64_t vocabulary) {
  const Source source = open_source(options, options.data, tokenizer);
  const std::int64_t all = source.stream->count();
  const bool splits = options.val.empty() && options.order == models::Order::shuffled;
  const std::int64_t train = splits ? all - all / 10 : all;
  const Source other = options.val.empty() ? source : open_source(options, options.val, tokenizer);
  const models::Range rest =
      options.val.empty() ? models::Range{train, all - train} : models::Range{0, other.stream->count()};
  const auto windows = [&](const Source& from, const models::Range& part) {
    return std::make_unique<models::TokenWindows>(from.stream,
                                                  models::TokenWindows::Settings{part, positions, vocabulary});
  };
  Corpus corpus;
  corpus.train = windows(source, {0, train});
  corpus.held_out = windows(other, rest);
  const std::string_view bytes = to_string(models::TokenType::bytes);
  corpus.bytes = source.kind == bytes;
  corpus.bytes_of_targets = bytes_of_targets(tokenizer, other.kind == bytes, vocabulary);
  corpus.fingerprint = source.stream->fingerprint() ^ (options.val.empty() ? 0 : other.stream->fingerprint() * 3);
  const std::string held_out =
      options.val.empty() ? fmt::format("the last {}", rest.count) : fmt::format("{} of {}", rest.count, other.name);
  corpus.description = fmt::format("{} {} of {}: the first {} to train on{}", all, source.kind, source.name, train,
                                   rest.count > 0 ? fmt::format(", {} held out", held_out) : "");
  if (corpus.train->count() == 0) {
    throw UsageError(
        fmt::format("{} tokens to train on are too few for a sequence of {} and one more; give more, or a "
                    "smaller --seq",
                    train, positions));
  }
  return corpus;
}

}  // namespace kolo::train

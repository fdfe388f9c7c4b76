#include "apps/train/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include <kolo/detail/hash.h>

#include "apps/cli/version.h"
#include "models/data/dataset.h"
#include "models/data/images.h"
#include "models/data/token_stream.h"

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

using Stream = std::shared_ptr<const models::TokenStream>;

Stream open_stream(const Options& options) {
  if (!options.data.empty()) return std::make_shared<models::TokenStream>(options.data, options.tokens);
  if (options.tokens != models::TokenType::bytes) {
    throw UsageError("--tokens is the dtype of --data; add --data");
  }
  return std::make_shared<models::TokenStream>(own_sources(), options.tokens);
}

std::string name_of(const Stream& stream, const std::string& path) {
  const std::string_view plural = stream->files() == 1 ? "" : "s";
  if (path.empty()) return fmt::format("the project's own sources, {} file{}", stream->files(), plural);
  return stream->files() == 1 ? path : fmt::format("{}, {} files", path, stream->files());
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
  return corpus;
}

Corpus read_tokens(const Options& options, std::int64_t positions, std::int64_t vocabulary) {
  const Stream stream = open_stream(options);
  const bool splits = options.val.empty() && options.order == models::Order::shuffled;
  const std::int64_t train = splits ? stream->count() - stream->count() / 10 : stream->count();
  const Stream other =
      options.val.empty() ? stream : std::make_shared<models::TokenStream>(options.val, options.tokens);
  const models::Range rest =
      options.val.empty() ? models::Range{train, stream->count() - train} : models::Range{0, other->count()};
  const auto windows = [&](const Stream& from, const models::Range& part) {
    return std::make_unique<models::TokenWindows>(from, models::TokenWindows::Settings{part, positions, vocabulary});
  };
  Corpus corpus;
  corpus.train = windows(stream, {0, train});
  corpus.held_out = windows(other, rest);
  corpus.fingerprint = stream->fingerprint() ^ (options.val.empty() ? 0 : other->fingerprint() * 3);
  const std::string held_out = options.val.empty() ? fmt::format("the last {}", rest.count)
                                                   : fmt::format("{} of {}", rest.count, name_of(other, options.val));
  corpus.description =
      fmt::format("{} {} of {}: the first {} to train on{}", stream->count(), to_string(options.tokens),
                  name_of(stream, options.data), train, rest.count > 0 ? fmt::format(", {} held out", held_out) : "");
  if (corpus.train->count() == 0) {
    throw UsageError(
        fmt::format("{} tokens to train on are too few for a sequence of {} and one more; give more, or a "
                    "smaller --seq",
                    train, positions));
  }
  return corpus;
}

}  // namespace kolo::train

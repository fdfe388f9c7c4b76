#include "apps/train/tokenizer_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "apps/cli/files.h"
#include "apps/cli/flags.h"
#include "models/data/token_layout.h"
#include "models/data/token_stream.h"
#include "models/tokenizer/trainer.h"
#include "models/util/atomic_file.h"
#include "models/util/input_file.h"

namespace kolo::train {
namespace {

namespace fs = std::filesystem;
using cli::Given;
using cli::UsageError;

struct TokenizerOptions {
  models::TrainerSettings settings;
  std::vector<std::string> data;  ///< files and folders
  std::string out;                ///< folder
};

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size() && !list.empty(); at += words.back().size() + 1)
    words.push_back(list.substr(at, list.find(',', at) - at));
  return words;
}

std::vector<cli::Flag<TokenizerOptions>> flags() {
  using Options = TokenizerOptions;
  constexpr std::string_view section = "Tokenizer";
  return {
      {{section, "vocab", "N", "tokens of the vocabulary, special ones and the 256 bytes among them (default: 50000)"},
       [](Options& options, const Given& given) { options.settings.vocabulary = cli::count_of(given, 256, 1 << 24); }},
      {{section, "data", "FILE...", "files of text to learn from, or folders of such files"},
       [](Options& options, const Given& given) {
         options.data.insert(options.data.begin(), cli::text_of(given, "a file or folder"));
       }},
      {{section, "out", "DIR", "folder for tokenizer.json, made if it is not there"},
       [](Options& options, const Given& given) { options.out = cli::text_of(given, "a folder"); }},
      {{section, "split", "PATTERN",
        "how text is cut before pairs are counted: gpt2, or llama3, which keeps at most three digits together and line "
        "breaks apart from words (default: gpt2)"},
       [](Options& options, const Given& given) {
         options.settings.split = models::split_patterns.parse(given.value);
       }},
      {{section, "special", "TOKEN,...", "special tokens, which get the first ids (default: <|endoftext|>)"},
       [](Options& options, const Given& given) { options.settings.special = words_of(given.value); }},
      {{section, "min-frequency", "N", "join pairs that occur at least so often (default: 2)"},
       [](Options& options, const Given& given) { options.settings.min_frequency = cli::count_of(given, 1); }}};
}

cli::Syntax syntax() {
  const auto all = flags();
  return {.flags = cli::texts_of<TokenizerOptions>(all), .general = {{"General", "help", "", "print this text"}}};
}

TokenizerOptions parse(int argc, const char* const* argv) {
  TokenizerOptions options;
  cli::Syntax words = syntax();
  words.on_word = [&](const std::string& word) { options.data.push_back(word); };  // more files of --data
  const cli::Values values = cli::parse_command_line(words, argc, argv);
  const auto all = flags();
  cli::apply<TokenizerOptions>(all, values, options);
  for (const char* const needed : {"data", "out"}) {
    if (!values.contains(needed)) throw UsageError(fmt::format("--{} is missing; add it", needed));
  }
  return options;
}

/// The files to learn from, but for the one that is written: it may be an older tokenizer in a folder of text.
std::vector<fs::path> inputs_of(const TokenizerOptions& options, const fs::path& output) {
  std::vector<fs::path> all;
  for (const std::string& data : options.data) {
    std::vector<fs::path> files = models::token_files(data);
    std::erase_if(files, [&](const fs::path& path) { return cli::same_file(path.string(), output.string()); });
    if (files.empty())
      throw UsageError(
          fmt::format("--data {} has no text but {}, which is written; give other files", data, output.string()));
    all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

models::InputFile open_text(const fs::path& path) {
  return {path, "give a file of text"};
}

/// Counts a file's text. Returns its bytes.
std::uint64_t count(const fs::path& path, models::TokenizerTrainer& trainer) {
  constexpr std::uint64_t most = 1 << 20;
  const models::InputFile file = open_text(path);
  std::string part;
  for (std::uint64_t at = 0; at < file.bytes(); at += part.size()) {
    part.resize(std::min(most, file.bytes() - at));
    file.read(at, std::as_writable_bytes(std::span(part)));
    trainer.add(part, at + part.size() == file.bytes());
  }
  return file.bytes();
}

}  // namespace

void train_tokenizer(int argc, const char* const* argv) {
  if (cli::launched_rank() > 0) return;
  const TokenizerOptions options = parse(argc, argv);
  const fs::path file = fs::path(options.out) / "tokenizer.json";
  const std::vector<fs::path> inputs = inputs_of(options, file);
  for (const fs::path& path : inputs) models::check_text(open_text(path));
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) models::refuse_to_write(file, error.message());
  models::AtomicFile output(file);  // what cannot be written is known before the work is done
  models::TokenizerTrainer trainer(options.settings);
  std::uint64_t bytes = 0;
  for (const fs::path& path : inputs) bytes += count(path, trainer);
  const models::TokenizerDefinition trained = trainer.train();
  const std::string text = json_of(trained);
  output.write(text.data(), text.size());
  output.commit();
  const std::string_view fewer =
      trained.size() < options.settings.vocabulary ? ", and no pair is left that occurs often enough for more" : "";
  cli::print(fmt::format("{}: {} tokens of {} bytes in {} file{}{}\n", file.string(), trained.size(), bytes,
                         inputs.size(), inputs.size() == 1 ? "" : "s", fewer));
}

std::string tokenizer_help() {
  return "kolo-train tokenizer learns a byte-level BPE tokenizer from files of text.\n\n"
         "usage: kolo-train tokenizer --vocab N --data FILE... --out DIR\n" +
         cli::describe(syntax());
}

}  // namespace kolo::train

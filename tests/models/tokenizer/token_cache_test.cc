// Files of encoded text that are kept.

#include "models/tokenizer/token_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "models/data/token_stream.h"
#include "models/tokenizer/trainer.h"
#include "tests/models/models_testing.h"
#include "tests/models/tokenizer/mixed_text.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::TempFolder;
using testing::write_file;
namespace fs = std::filesystem;

class TokenCache : public ::testing::Test {
 protected:
  TokenCache() { write_file(text_, testing::MixedText(4).text(3'000'000 / (sanitized ? 10 : 1))); }

  fs::path encode(const Tokenizer& tokenizer, const std::vector<fs::path>& files) {
    return encode_files(tokenizer, files, folder_ / "cache/tokens", [this](std::uint64_t) { ++encodings_; });
  }
  static std::vector<std::int32_t> tokens_in(const fs::path& file) {
    const TokenStream stream(file, std::nullopt);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.count()));
    stream.copy(0, 1 << 24, tokens);
    return tokens;
  }
  static TokenizerDefinition trained(SplitPattern split) {
    TokenizerTrainer trainer({.vocabulary = 400, .split = split});
    trainer.add(testing::MixedText(5).text(20'000), true);
    return trainer.train();
  }

  TempFolder folder_;
  const fs::path text_ = folder_ / "text";
  const TokenizerDefinition definition_ = trained(SplitPattern::gpt2);
  const Tokenizer tokenizer_{definition_};
  std::atomic<int> encodings_ = 0;
};

TEST_F(TokenCache, ATextIsEncodedOnce) {
  const fs::path file = encode(tokenizer_, {text_});
  EXPECT_EQ(encodings_, 1);
  EXPECT_EQ(tokens_in(file), tokenizer_.encode(testing::read_file(text_)));
  EXPECT_EQ(TokenStream(file, std::nullopt).type(), TokenType::u16);
  fs::rename(text_, folder_ / "moved");  // content counts, not the name
  EXPECT_EQ(encode(tokenizer_, {folder_ / "moved"}), file);
  EXPECT_EQ(encodings_, 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), {}), 1) << "nothing else is left there";
}

TEST_F(TokenCache, WhatWasCutIsEncodedAgain) {
  const fs::path file = encode(tokenizer_, {text_});
  const std::string whole = testing::read_file(file);
  for (const std::size_t bytes : {whole.size() - 1, whole.size() - 2, std::size_t{100}, std::size_t{0}}) {
    write_file(file, whole.substr(0, bytes));
    EXPECT_EQ(encode(tokenizer_, {text_}), file);
    EXPECT_TRUE(testing::read_file(file) == whole) << bytes;
  }
  EXPECT_EQ(encodings_, 5);
}

/// As on a file system that fails for a while; a link to itself stands for the file.
TEST_F(TokenCache, WhatCannotBeReadIsNotEncodedAgain) {
  const fs::path file = encode(tokenizer_, {text_});
  fs::remove(file);
  fs::create_symlink(file.filename(), file);
  EXPECT_EQ(encode(tokenizer_, {text_}), file);
  EXPECT_EQ(encodings_, 1);
  EXPECT_EQ(error_of([&] { tokens_in(file); }, file.parent_path()).substr(0, 15), "cannot use DIR/");
  EXPECT_TRUE(fs::is_symlink(file));
}

TEST_F(TokenCache, AnotherTextOrTokenizerIsAnotherFile) {
  const fs::path file = encode(tokenizer_, {text_});
  EXPECT_NE(encode(Tokenizer(trained(SplitPattern::llama3)), {text_}), file);
  std::string text = testing::read_file(text_);
  text[text.size() / 3] ^= 1;
  write_file(text_, text);
  EXPECT_NE(encode(tokenizer_, {text_}), file);
  EXPECT_EQ(encodings_, 3);
}

/// A file is a text: its template's tokens are around it, and no piece goes over its end.
TEST_F(TokenCache, FilesAreTextsOfTheirOwn) {
  TokenizerDefinition definition = definition_;
  definition.before = {0};
  definition.behind = {1, 2};
  const Tokenizer tokenizer(definition);
  write_file(folder_ / "a", "the en");
  write_file(folder_ / "b", "d");
  std::vector<std::int32_t> want = tokenizer.encode("the en");
  for (const std::int32_t id : tokenizer.encode("d")) want.push_back(id);
  EXPECT_EQ(tokens_in(encode(tokenizer, {folder_ / "a", folder_ / "b"})), want);
  write_file(folder_ / "c", "the end");
  EXPECT_NE(encode(tokenizer, {folder_ / "c"}), encode(tokenizer, {folder_ / "a", folder_ / "b"}));
}

TEST_F(TokenCache, LargeVocabulariesTakeU32) {
  TokenizerDefinition definition = definition_;
  while (definition.size() < 65537) {
    definition.added.push_back({static_cast<std::int32_t>(definition.size()), fmt::format("<{}>", definition.size())});
    definition.vocabulary.emplace_back();
  }
  write_file(folder_ / "a", "a<65536>");
  const fs::path file = encode(Tokenizer(definition), {folder_ / "a"});
  EXPECT_EQ(TokenStream(file, std::nullopt).type(), TokenType::u32);
  EXPECT_EQ(tokens_in(file).at(1), 65536);
}

TEST_F(TokenCache, OneOfSeveralEncodes) {
  std::vector<fs::path> files(4);
  std::vector<std::thread> threads;
  for (fs::path& file : files) threads.emplace_back([&] { file = encode(tokenizer_, {text_}); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(encodings_, 1);
  EXPECT_EQ(std::ranges::count(files, files[0]), 4);
}

TEST_F(TokenCache, WhatCannotBeEncoded) {
  write_file(folder_ / "empty", "");
  EXPECT_EQ(error_of([&] { encode(tokenizer_, {folder_ / "empty"}); }, folder_.path()),
            "cannot use DIR/empty (it is empty); give a file of text");
  write_file(folder_ / "cache", "a file");
  const std::string error = error_of([&] { encode(tokenizer_, {text_}); }, folder_.path());
  EXPECT_TRUE(error.starts_with("cannot write DIR/cache/tokens (Not a directory); ")) << error;
}

TEST_F(TokenCache, ATextThatChangesMeanwhileIsNotKept) {
  const auto changes = [&](auto change) {
    return error_of(
        [&] { encode_files(tokenizer_, std::vector{text_}, folder_ / "c", [&](std::uint64_t) { change(); }); },
        folder_.path());
  };
  EXPECT_EQ(changes([&] { write_file(text_, std::string(fs::file_size(text_), 'x')); }),
            "DIR/text changed while it was encoded; try again when it is complete");
  EXPECT_TRUE(fs::is_empty(folder_ / "c"));
}

}  // namespace
}  // namespace kolo::models

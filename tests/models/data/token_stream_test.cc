// Streams of tokens in files, and the windows cut from them.

#include "models/data/token_stream.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::TempFolder;
using testing::write_file;

template <class Token>
std::string bytes_of(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

std::vector<std::int32_t> all_of(const TokenStream& stream, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.count()));
  stream.copy(0, vocabulary, tokens);
  return tokens;
}

TEST(TokenStream, ReadsEveryType) {
  const TempFolder folder;
  write_file(folder / "text", "a\xff\n");
  write_file(folder / "u16", bytes_of<std::uint16_t>({1, 65535, 256}));
  write_file(folder / "u32", bytes_of<std::uint32_t>({70000, 3}));
  EXPECT_EQ(all_of(TokenStream(folder / "text", TokenType::bytes), 256), (std::vector<std::int32_t>{97, 255, 10}));
  EXPECT_EQ(all_of(TokenStream(folder / "u16", TokenType::u16), 65536), (std::vector<std::int32_t>{1, 65535, 256}));
  EXPECT_EQ(all_of(TokenStream(folder / "u32", TokenType::u32), 100000), (std::vector<std::int32_t>{70000, 3}));
}

TEST(TokenStream, FilesOfAFolderFollowEachOtherInTheOrderOfTheirNames) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "d");
  std::filesystem::create_directory(folder / "d/inner");
  write_file(folder / "d/b", "45678");
  write_file(folder / "d/a", "0123");
  write_file(folder / "d/c", "9");
  write_file(folder / "d/.hidden", "x");
  const TokenStream stream(folder / "d", TokenType::bytes);
  EXPECT_EQ(stream.files(), 3u);
  ASSERT_EQ(stream.count(), 10);
  for (std::int64_t first = 0; first < 10; ++first) {
    for (std::int64_t last = first; last <= 10; ++last) {
      std::vector<std::int32_t> got(static_cast<std::size_t>(last - first)), want(got.size());
      std::iota(want.begin(), want.end(), '0' + static_cast<std::int32_t>(first));
      stream.copy(first, 256, got);
      EXPECT_EQ(got, want) << first << " to " << last;
    }
  }
}

TEST(TokenStream, FilesThatCannotBeUsed) {
  const TempFolder folder;
  const std::string advice = "; give a file of tokens, or a folder of such files";
  const auto error = [&](std::string_view name, TokenType type) {
    return error_of([&] { TokenStream(folder / name, type); }, folder.path());
  };
  EXPECT_EQ(error("none", TokenType::bytes), "cannot use DIR/none (No such file or directory)" + advice);
  EXPECT_EQ(error("", TokenType::bytes), "cannot use DIR/ (it has no files)" + advice);
  write_file(folder / "empty", "");
  EXPECT_EQ(error("empty", TokenType::bytes), "cannot use DIR/empty (it is empty)" + advice);
  write_file(folder / "odd", "12345");
  EXPECT_EQ(error("odd", TokenType::u16), "cannot use DIR/odd (5 bytes are not a whole number of u16 tokens)" + advice);
  EXPECT_EQ(error_of([] { TokenStream("/dev/null", TokenType::bytes); }),
            "cannot use /dev/null (it is not a regular file)" + advice);
  EXPECT_EQ(error_of([] { token_types.parse("u8"); }),
            "unknown tokens 'u8' (known: bytes, u16, u32); choose one of them");
}

TEST(TokenStream, ATokenOutOfTheVocabularyIsNamed) {
  const TempFolder folder;
  write_file(folder / "a", bytes_of<std::uint32_t>({1, 2}));
  write_file(folder / "b", bytes_of<std::uint32_t>({3, 4000000000u}));
  const TokenStream stream(folder.path(), TokenType::u32);
  EXPECT_EQ(error_of([&] { all_of(stream, 1000); }, folder.path()),
            "token 1 of DIR/b is 4000000000, and the vocabulary ends at 999; give a larger --vocab, or --tokens as "
            "they are in "
            "the file");
  std::vector<std::int32_t> first(3);
  stream.copy(0, 4, first);
  EXPECT_EQ(first, (std::vector<std::int32_t>{1, 2, 3}));
}

TEST(TokenStream, FingerprintsTellContentsApart) {
  const TempFolder folder;
  std::string text(100000, 'x');
  const auto fingerprint = [&] {
    write_file(folder / "text", text);
    return TokenStream(folder / "text", TokenType::bytes).fingerprint();
  };
  const auto before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  text.back() = 'y';
  EXPECT_NE(fingerprint(), before);
}

/// window k is tokens[k*seq : k*seq + seq + 1]
TEST(TokenWindows, TargetsAreTheTokensThatFollow) {
  const TempFolder folder;
  write_file(folder / "text", "abcdefghij");
  const auto stream = std::make_shared<TokenStream>(folder / "text", TokenType::bytes);
  const auto count = [&](Range part) { return TokenWindows(stream, {part, 3, 256}).count(); };
  EXPECT_EQ(count({0, 10}), 3);
  EXPECT_EQ(count({0, 9}), 2);
  EXPECT_EQ(count({5, 4}), 1);
  EXPECT_EQ(count({5, 3}), 0);
  EXPECT_EQ(count({5, 0}), 0);

  const TokenWindows windows(stream, {{1, 9}, 3, 256});
  BatchStorage batch;
  windows.gather(std::vector<std::int64_t>{1, 0}, 0, batch);
  EXPECT_EQ(batch.examples, 2);
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{'e', 'f', 'g', 'b', 'c', 'd'}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{'f', 'g', 'h', 'c', 'd', 'e'}));
  windows.gather({}, 0, batch);
  EXPECT_EQ(batch.examples, 0);
  EXPECT_TRUE(batch.tokens.empty());
}

}  // namespace
}  // namespace kolo::models

// Streams of tokens in files, and the windows cut from them.

#include "models/data/token_stream.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
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
  write_file(folder / "u64", bytes_of<std::uint64_t>({70000, 4}));
  EXPECT_EQ(all_of(TokenStream(folder / "u64", TokenType::u64), 100000), (std::vector<std::int32_t>{70000, 4}));
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
  std::filesystem::create_directory(folder / "links");
  std::filesystem::create_symlink("b", folder / "links/b");
  for (const std::string name : {"links", "links/b"}) {
    EXPECT_EQ(error(name, TokenType::bytes), "cannot use DIR/links/b (Too many levels of symbolic links)" + advice);
  }
  std::filesystem::create_directory(folder / "lost");
  write_file(folder / "lost/a", "text");
  std::filesystem::create_symlink("not mounted", folder / "lost/b");
  EXPECT_EQ(error("lost", TokenType::bytes), "cannot use DIR/lost/b (No such file or directory)" + advice);
  write_file(folder / "empty", "");
  EXPECT_EQ(error("empty", TokenType::bytes), "cannot use DIR/empty (it is empty)" + advice);
  write_file(folder / "odd", "12345");
  EXPECT_EQ(error("odd", TokenType::u16), "cannot use DIR/odd (5 bytes are not a whole number of u16 tokens)" + advice);
  EXPECT_EQ(error_of([] { TokenStream("/dev/null", TokenType::bytes); }),
            "cannot use /dev/null (it is not a regular file)" + advice);
  EXPECT_EQ(error_of([] { token_types.parse("u8"); }),
            "unknown tokens 'u8' (known: bytes, u16, u32, u64); choose one of them");
}

std::string llm_c(std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
  std::vector<std::uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header);
}

std::string npy(const std::string& dict, char version = 1) {
  std::string text = std::string("\x93NUMPY") + version + '\0';
  const std::size_t length = dict.size();
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte) text += static_cast<char>(length >> (8 * byte));
  return text + dict;
}

TEST(TokenStream, TellsFilesByTheirContent) {
  const TempFolder folder;
  const auto tokens = [&](std::string_view bytes) {
    write_file(folder / "file", bytes);
    const TokenStream stream(folder / "file", std::nullopt);
    return std::pair(stream.type(), all_of(stream, 1 << 20));
  };
  const auto expected = [](TokenType type) { return std::pair(type, std::vector<std::int32_t>{3, 50000, 7}); };
  const std::string u16 = bytes_of<std::uint16_t>({3, 50000, 7}), u32 = bytes_of<std::uint32_t>({3, 50000, 7}),
                    u64 = bytes_of<std::uint64_t>({3, 50000, 7});
  EXPECT_EQ(tokens(llm_c(20240520, 1, 3) + u16), expected(TokenType::u16));
  EXPECT_EQ(tokens(llm_c(20240801, 7, 3) + u32), expected(TokenType::u32));
  const auto dict = [](std::string_view dtype) {
    return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (3,), }}        \n", dtype);
  };
  EXPECT_EQ(tokens(npy(dict("<u2")) + u16), expected(TokenType::u16));
  EXPECT_EQ(tokens(npy(dict("<i4")) + u32), expected(TokenType::u32));
  EXPECT_EQ(tokens(npy(dict("<u4"), 2) + u32), expected(TokenType::u32));
  EXPECT_EQ(tokens(npy(dict("<i8")) + u64), expected(TokenType::u64));
  EXPECT_EQ(tokens("a\xff\n"), std::pair(TokenType::bytes, std::vector<std::int32_t>{97, 255, 10}));
}

TEST(TokenStream, HeadersThatCannotBeUsed) {
  const TempFolder folder;
  const auto why = [&](std::string_view bytes, std::optional<TokenType> type = std::nullopt) {
    write_file(folder / "f", bytes);
    const std::string error = error_of([&] { TokenStream(folder / "f", type); }, folder.path());
    const std::string before = "cannot use DIR/f (", behind = "); give a file of tokens, or a folder of such files";
    if (!error.starts_with(before) || !error.ends_with(behind)) return error;
    return error.substr(before.size(), error.size() - before.size() - behind.size());
  };
  const std::string header = llm_c(20240520, 1, 3), three = bytes_of<std::uint16_t>({1, 2, 3});
  EXPECT_EQ(why(header + three.substr(0, 5)), "1 of the 3 tokens of its header are missing");
  EXPECT_EQ(why(header.substr(0, 1000)), "3 of the 3 tokens of its header are missing");
  EXPECT_EQ(why(header.substr(0, 10)), "it ends within its header");
  EXPECT_EQ(why(header + three + "x"), "1 bytes follow the 3 tokens of its header");
  EXPECT_EQ(why(llm_c(20240520, 1, 4294967295u) + three),
            "4294967292 of the 4294967295 tokens of its header are missing");
  EXPECT_EQ(why(llm_c(20240520, 2, 3) + three), "it is of llm.c's version 2, and 1 is known");
  EXPECT_EQ(why(llm_c(20240520, 1, 0)), "it has no tokens");
  EXPECT_EQ(why(header + three, TokenType::u32), "its header says u16, and --tokens u32");
  const auto dict = [](std::string_view dtype, std::string_view shape) {
    return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n", dtype, shape);
  };
  EXPECT_EQ(why(npy(dict("<f4", "(1,)")) + "1234"), "its dtype is '<f4', and no u2, u4, u8, i4 or i8");
  EXPECT_EQ(why(npy(dict(">u2", "(3,)")) + three), "its dtype is '>u2', and no u2, u4, u8, i4 or i8");
  EXPECT_EQ(why(npy(dict("<u2", "(3, 1)")) + three), "its shape is (3, 1), and not of one dimension");
  EXPECT_EQ(why(npy(dict("<u2", "(-3,)")) + three), "its shape is (-3,), and not of one dimension");
  EXPECT_EQ(why(npy(dict("<u2", "(4,)")) + three), "1 of the 4 tokens of its header are missing");
  EXPECT_EQ(why(npy(dict("<u8", "(18446744073709551615,)")) + three),
            "18446744073709551615 of the 18446744073709551615 tokens of its header are missing");
  EXPECT_EQ(why(npy("{}") + three), "its header is not as NumPy writes it");
  EXPECT_EQ(why(npy(dict("<u2", "(3,)")).substr(0, 40)), "it ends within its header, or that is no header of .npy");
  EXPECT_EQ(why("\x93NUMPY"), "it ends within its header, or that is no header of .npy");
  EXPECT_EQ(why(three), "it is no text, and has no header: say with --tokens what its tokens are");
  const auto no_text = [&](std::string_view bytes) {
    write_file(folder / "f", bytes);
    return error_of([&] { check_text(InputFile(folder / "f", "give a file of text")); }, folder.path());
  };
  EXPECT_EQ(no_text("a\xff\n"), "no error");
  EXPECT_EQ(no_text(three), "cannot use DIR/f (it is no text, and has no header); give a file of text");
  EXPECT_EQ(no_text(header + three), "cannot use DIR/f (it is no text: its header says u16); give a file of text");
  write_file(folder / "g", header + three);
  write_file(folder / "f", "text");
  EXPECT_EQ(error_of([&] { TokenStream(folder.path(), std::nullopt); }, folder.path()),
            "cannot use DIR/g (it holds u16, and DIR/f holds bytes); give a file of tokens, or a folder of such files");
}

/// The file is read when its tokens are used.
TEST(TokenStream, AFileThatIsCutMeanwhileIsAnError) {
  const TempFolder folder;
  write_file(folder / "a", std::string(100000, 'a'));
  write_file(folder / "b", std::string(100000, 'b'));
  const TokenStream stream(folder.path(), std::nullopt);
  std::vector<std::int32_t> some(10);
  stream.copy(150000, 256, some);
  std::filesystem::resize_file(folder / "b", 50004);
  stream.copy(99990, 256, some);
  EXPECT_EQ(error_of([&] { stream.copy(150000, 256, some); }, folder.path()),
            "cannot use DIR/b (it ends after 50004 bytes, and had 100000: another process has cut it); give a file of "
            "tokens, or a folder of such files");
  EXPECT_NE(error_of([&] { (void)stream.fingerprint(); }), "no error");
}

/// More files than a process may have open.
TEST(TokenStream, ManyFiles) {
  const TempFolder folder;
  std::vector<std::int32_t> want;
  for (int i = 0; i < 1500; ++i) {
    write_file(folder / fmt::format("{:04}", i), std::string(1, static_cast<char>('a' + i % 26)));
    want.push_back('a' + i % 26);
  }
  EXPECT_EQ(all_of(TokenStream(folder.path(), std::nullopt), 256), want);
}

TEST(TokenStream, ATokenOutOfTheVocabularyIsNamed) {
  const TempFolder folder;
  write_file(folder / "a", bytes_of<std::uint32_t>({1, 2}));
  write_file(folder / "b", bytes_of<std::uint32_t>({3, 4000000000u}));
  const TokenStream stream(folder.path(), TokenType::u32);
  EXPECT_EQ(error_of([&] { all_of(stream, 1000); }, folder.path()),
            "token 1 of DIR/b is 4000000000, and the vocabulary ends at 999; give the model a larger vocabulary, or "
            "--tokens as "
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

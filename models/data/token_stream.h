#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/data/examples.h"
#include "models/data/token_layout.h"

namespace kolo::models {

/// A file; or the regular files of a folder, except hidden ones, in the order of their names. Errors: ModelError.
std::vector<std::filesystem::path> token_files(const std::filesystem::path& path);

/// The tokens of one or more files, concatenated, and read when they are used: files may be larger than memory.
/// Thread-safe.
class TokenStream {
 public:
  /// files  in this order, all of one type
  /// type   of files without a header (token_layout.h); nothing: text
  /// Errors: ModelError that names the file and the reason: missing, unreadable, empty, as token_layout(), or of
  /// another type than the first one.
  TokenStream(std::span<const std::filesystem::path> files, std::optional<TokenType> type);
  /// Those that token_files() gives.
  TokenStream(const std::filesystem::path& path, std::optional<TokenType> type)
      : TokenStream(token_files(path), type) {}

  std::int64_t count() const { return count_; }
  std::size_t files() const { return files_.size(); }
  TokenType type() const { return type_; }

  /// Copies tokens first … first + out.size() - 1. Errors: ModelError that names the file and the place of a token that
  /// is not below `vocabulary`, or a file that was cut since.
  void copy(std::int64_t first, std::int64_t vocabulary, std::span<std::int32_t> out) const;

  /// A hash of the files' sizes and of bytes at the beginning, in the middle and at the end of each. Errors: ModelError
  /// for a file that was cut since.
  std::uint64_t fingerprint() const;

 private:
  struct File {
    InputFile file;
    std::uint64_t first_byte = 0;
    std::int64_t first = 0;  // tokens of the stream before it
    std::int64_t count = 0;  // tokens
  };

  TokenType type_ = TokenType::bytes;
  std::int64_t count_ = 0;
  std::vector<File> files_;
};

/// Consecutive sequences of `positions` tokens from a part of a stream: example k has the tokens from k·positions on;
/// the targets are the next tokens.
class TokenWindows final : public Examples {
 public:
  struct Settings {
    Range part;                   ///< of the stream, in tokens
    std::int64_t positions = 0;   ///< of a sequence; positive
    std::int64_t vocabulary = 0;  ///< every token must be below it
  };

  TokenWindows(std::shared_ptr<const TokenStream> stream, const Settings& settings);

  /// Full windows only: the last token but one begins none unless a whole window and one token more are there.
  std::int64_t count() const override;
  std::int64_t targets_each() const override { return settings_.positions; }
  void gather(std::span<const std::int64_t> examples, std::int64_t epoch, BatchStorage& to) const override;

 private:
  std::shared_ptr<const TokenStream> stream_;
  Settings settings_;
};

}  // namespace kolo::models

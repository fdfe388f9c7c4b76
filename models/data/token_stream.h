#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/examples.h"
#include "models/util/error.h"

namespace kolo::models {

/// The dtype of a token file: bytes, or little-endian numbers of 16 or 32 bits.
enum class TokenType : unsigned char { bytes, u16, u32 };

inline constexpr WordTable<TokenType, 3> token_types{"tokens", {"bytes", "u16", "u32"}};
constexpr std::string_view to_string(TokenType type) {
  return token_types[type];
}

/// The tokens of one or more files, concatenated and memory-mapped: files may be larger than memory. Thread-safe.
class TokenStream {
 public:
  /// path  a file, or a folder: its regular files, except hidden ones, in the order of their names
  /// Errors: ModelError that names the file and the reason: missing, unreadable, empty, half a token at its end.
  TokenStream(const std::filesystem::path& path, TokenType type);
  /// These files, in this order.
  TokenStream(std::span<const std::filesystem::path> files, TokenType type);
  ~TokenStream();
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) noexcept;

  std::int64_t count() const { return count_; }
  std::size_t files() const { return files_.size(); }

  /// Copies tokens first … first + out.size() - 1. Errors: ModelError that names the file and the place of a token that
  /// is not below `vocabulary`.
  void copy(std::int64_t first, std::int64_t vocabulary, std::span<std::int32_t> out) const;

  /// A hash of the files' sizes and of bytes at the beginning, in the middle and at the end of each.
  std::uint64_t fingerprint() const;

 private:
  class File;
  void open(std::span<const std::filesystem::path> files);

  TokenType type_;
  std::int64_t count_ = 0;
  std::vector<std::unique_ptr<File>> files_;
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

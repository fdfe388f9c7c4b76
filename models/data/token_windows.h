#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "models/data/examples.h"
#include "models/data/token_stream.h"

namespace kolo::models {

/// Sequences of `positions` tokens, cut from a part of a stream one behind the other: example k has the tokens from
/// k·positions on, and as targets those that follow each.
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

// Encoding and decoding: against numbers of the library `tokenizers` 0.23.3 (library_test.py prints them), and against
// themselves.

#include "models/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <kolo/detail/hash.h>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/trainer.h"
#include "tests/models/models_testing.h"
#include "tests/models/tokenizer/mixed_text.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::MixedText;
using Ids = std::vector<std::int32_t>;

TokenizerDefinition stored(const std::string& name) {
  return read_tokenizer(std::filesystem::path(KOLO_SOURCE_DIR) / "tests/models/tokenizer" / (name + ".json"));
}

std::string hash_of(const Ids& ids) {
  return fmt::format("{:016x}", detail::Hash().add(std::as_bytes(std::span(ids))).value());
}

/// Together the bytes of a text, of whatever script; what is special stands for none.
TEST(Tokenizer, CountsTheBytesOfTokens) {
  TokenizerDefinition definition = stored("llama3");
  const auto plain = static_cast<std::int32_t>(definition.size());
  definition.added.push_back({.id = plain, .content = "<plain>", .special = false});
  definition.added.push_back({.id = plain + 1, .content = "<special>"});
  definition.vocabulary.resize(definition.vocabulary.size() + 2);
  const Tokenizer tokenizer(definition);
  const std::vector<std::int32_t> counts = tokenizer.byte_counts();
  ASSERT_EQ(static_cast<std::int64_t>(counts.size()), tokenizer.size());
  const std::string text = "na\u00efve \u043a\u043e\u043b\u043e \u4e2d\u6587 and <plain> words";
  std::size_t bytes = 0;
  for (const std::int32_t id : tokenizer.encode(text + "<special>"))
    bytes += static_cast<std::size_t>(counts[static_cast<std::size_t>(id)]);
  EXPECT_EQ(bytes, text.size());
  EXPECT_EQ(counts[static_cast<std::size_t>(plain)], 7);
  EXPECT_EQ(counts[static_cast<std::size_t>(plain) + 1], 0);
}

TEST(Tokenizer, IdsEqualTheLibrarys) {
  const std::string text = MixedText(1).text(1 << 20);
  TokenizerDefinition gpt2 = stored("gpt2"), llama3 = stored("llama3");
  EXPECT_EQ(hash_of(Tokenizer(gpt2).encode(text)), "4216e28604ece0fc");
  EXPECT_EQ(hash_of(Tokenizer(llama3).encode(text)), "90a26ecf7d0f9eff");
  gpt2.add_prefix_space = true;
  llama3.ignore_merges = false;
  EXPECT_EQ(hash_of(Tokenizer(gpt2).encode(text)), "e5bbe6f1c9bfef60");
  EXPECT_EQ(hash_of(Tokenizer(llama3).encode(text)), "744a1e747bb2d35d");
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const std::string text = MixedText(2).text(sanitized ? 20'000 : 200'000);
  for (const char* name : {"gpt2", "llama3"}) {
    const Tokenizer tokenizer(stored(name));
    const Ids ids = tokenizer.encode(text);
    std::string with_special = tokenizer.decode(ids, true);
    if (std::string_view(name) == "llama3") with_special.erase(0, std::string_view("<|begin_of_text|>").size());
    EXPECT_EQ(with_special, valid_utf8(text)) << name;
  }
}

/// Wherever a text is cut, and whatever is in the encoder's memory.
TEST(Tokenizer, PartsOfATextGiveTheIdsOfTheWhole) {
  for (const std::uint64_t seed : testing::seeds(20)) {
    const std::string text = MixedText(seed).text(3000);
    std::mt19937_64 random(seed);
    for (const char* name : {"gpt2", "llama3"}) {
      TokenizerDefinition definition = stored(name);
      definition.add_prefix_space = seed % 2 == 0;
      definition.behind = {5};
      const Tokenizer tokenizer(definition);
      const Ids whole = tokenizer.encode(text);
      TextEncoder encoder(tokenizer);
      for (int round = 0; round < 2; ++round) {
        Ids parts;
        std::string_view rest = text;
        while (!rest.empty()) {
          const std::size_t bytes =
              std::min<std::size_t>(rest.size(), random() % 3 == 0 ? random() % 400 : random() % 9);
          encoder.add(rest.substr(0, bytes), bytes == rest.size(), parts);
          rest.remove_prefix(bytes);
        }
        ASSERT_EQ(parts, whole) << name << ", seed " << seed;
      }
    }
  }
}

/// As the rule says it: of all pairs the one of the lowest rank, the leftmost of these, until there is none.
Ids joined_slowly(const TokenizerDefinition& definition, std::string_view piece) {
  std::vector<std::string> tokens;
  for (const char byte : piece) tokens.push_back(to_characters({&byte, 1}));
  for (bool more = true; more;) {
    more = false;
    for (const auto& [left, right] : definition.merges) {
      const std::string& a = definition.vocabulary[static_cast<std::size_t>(left)];
      const std::string& b = definition.vocabulary[static_cast<std::size_t>(right)];
      for (std::size_t i = 0; i + 1 < tokens.size() && !more; ++i) {
        if (tokens[i] != a || tokens[i + 1] != b) continue;
        tokens[i] += tokens[i + 1];
        tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        more = true;
      }
      if (more) break;
    }
  }
  Ids ids;
  for (const std::string& token : tokens) {
    const auto at = std::ranges::find(definition.vocabulary, token);
    ids.push_back(static_cast<std::int32_t>(at - definition.vocabulary.begin()));
  }
  return ids;
}

TEST(Tokenizer, MergesAreMadeInTheirOrder) {
  const TokenizerDefinition definition = stored("gpt2");
  const Tokenizer tokenizer(definition);
  for (const std::uint64_t seed : testing::seeds(100)) {
    std::mt19937_64 random(seed);
    std::string word;
    for (std::size_t i = 1 + random() % 30; i > 0; --i) word += "etaoinshrdlu"[random() % 12];
    EXPECT_EQ(tokenizer.encode(word), joined_slowly(definition, word)) << word << ", seed " << seed;
  }
}

TEST(Tokenizer, ALongPieceTakesNoSquareOfTime) {
  const Tokenizer tokenizer(stored("gpt2"));
  const std::string word(sanitized ? 20'000 : 300'000, 'e');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
}

TEST(Tokenizer, AddedTokens) {
  TokenizerDefinition definition = stored("gpt2");
  const std::int64_t size = definition.size();
  const auto add = [&](const std::string& content, bool special, bool normalized) {
    definition.added.push_back({static_cast<std::int32_t>(definition.size()), content, special, normalized});
    definition.vocabulary.emplace_back();
  };
  add("<a>", true, false);
  add("<ab>", false, false);
  add("<ab>c", false, false);
  add("x<a", false, true);  // is looked for in what the others leave
  const Tokenizer tokenizer(definition);
  const auto first = static_cast<std::int32_t>(size);
  const auto id = [&](std::string_view text) { return tokenizer.encode(text).at(0); };
  EXPECT_EQ(tokenizer.encode("<ab>c<ab><a>"), (Ids{first + 2, first + 1, first}));
  EXPECT_EQ(tokenizer.encode("x<a>"), (Ids{id("x"), first}));
  EXPECT_EQ(tokenizer.encode("x<a x<a"), (Ids{first + 3, id(" "), first + 3}));
  EXPECT_EQ(tokenizer.decode(Ids{first, first + 1, 0}), "<ab>");
  EXPECT_EQ(tokenizer.decode(Ids{first, 0}, true), "<a><|endoftext|>");
}

TEST(Tokenizer, IdsThatAreNone) {
  const Tokenizer tokenizer(stored("gpt2"));
  EXPECT_EQ(error_of([&] { (void)tokenizer.decode(Ids{900}); }),
            "token 900 is none of the tokenizer's (0 to 899); choose others");
  EXPECT_EQ(error_of([&] { (void)tokenizer.decode(Ids{-1}); }),
            "token -1 is none of the tokenizer's (0 to 899); choose others");
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(Tokenizer(stored("llama3")).encode("").size(), 1u) << "the template's token";
}

TEST(Tokenizer, FingerprintsTellTokenizersApart) {
  const TokenizerDefinition definition = stored("llama3");
  const auto fingerprint = Tokenizer(definition).fingerprint();
  EXPECT_EQ(Tokenizer(stored("llama3")).fingerprint(), fingerprint);
  EXPECT_NE(Tokenizer(stored("gpt2")).fingerprint(), fingerprint);
  const auto changed = [&](auto change) {
    TokenizerDefinition other = definition;
    change(other);
    return Tokenizer(other).fingerprint();
  };
  EXPECT_NE(changed([](auto& d) { std::swap(d.merges[3], d.merges[4]); }), fingerprint);
  EXPECT_NE(changed([](auto& d) { d.ignore_merges = false; }), fingerprint);
  EXPECT_NE(changed([](auto& d) { d.before.clear(); }), fingerprint);
  EXPECT_NE(changed([](auto& d) { d.split = SplitPattern::gpt2; }), fingerprint);
  EXPECT_NE(changed([](auto& d) { d.added.pop_back(); }), fingerprint);
}

}  // namespace
}  // namespace kolo::models

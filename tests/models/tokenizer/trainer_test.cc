// Training of tokenizers: by hand, against the rule as it is said, and against numbers of the library `tokenizers`
// 0.23.3 (library_test.py prints them).

#include "models/tokenizer/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/models/models_testing.h"
#include "tests/models/tokenizer/mixed_text.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::MixedText;

TokenizerDefinition trained(const TrainerSettings& settings, std::string_view text,
                            std::size_t part = std::string::npos) {
  TokenizerTrainer trainer(settings);
  for (; text.size() > part; text.remove_prefix(part)) trainer.add(text.substr(0, part), false);
  trainer.add(text, true);
  return trainer.train();
}

/// The merges, as texts.
std::vector<std::string> merges_of(const TokenizerDefinition& definition) {
  std::vector<std::string> merges;
  for (const auto& [left, right] : definition.merges)
    merges.push_back(definition.vocabulary[static_cast<std::size_t>(left)] + " " +
                     definition.vocabulary[static_cast<std::size_t>(right)]);
  return merges;
}

std::string hash_of(const TokenizerDefinition& definition) {
  detail::Hash hash;
  for (const auto& lines : {definition.vocabulary, merges_of(definition)}) {
    for (const std::string& line : lines) hash.add(line + "\n");
  }
  return fmt::format("{:016x}", hash.value());
}

TEST(Trainer, ByHand) {
  // "hug" 10, "pug" 5, "pun" 12, "bun" 4, "hugs" 5: the example of many courses.
  std::string text;
  for (const auto& [word, times] :
       std::map<std::string, int>{{"hug", 10}, {"pug", 5}, {"pun", 12}, {"bun", 4}, {"hugs", 5}}) {
    for (int i = 0; i < times; ++i) text += word + "\n";
  }
  const TokenizerDefinition definition = trained({.vocabulary = 260, .special = {"<s>"}}, text);
  EXPECT_EQ(merges_of(definition), (std::vector<std::string>{"u g", "u n", "h ug"}));
  EXPECT_EQ(definition.vocabulary.front(), "<s>");
  EXPECT_EQ(definition.vocabulary.at(1), "!");
  EXPECT_EQ(definition.vocabulary.back(), "hug");
  EXPECT_EQ(definition.size(), 260);
  const Tokenizer tokenizer(definition);
  EXPECT_EQ(tokenizer.encode("hug").size(), 1u);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hugs bun \xf0\x9f\x98\x80")), "hugs bun \xf0\x9f\x98\x80");
}

/// Counts all pairs anew for each merge.
std::vector<std::string> merges_slowly(const std::string& text, std::int64_t vocabulary, std::int64_t min_frequency) {
  std::map<char32_t, int> order;
  std::map<std::string, int> ids;
  for (const char32_t c : byte_characters()) order[c] = 0;
  for (const auto& [c, unused] : order) {
    std::string token;
    append_utf8(c, token);
    const int next = static_cast<int>(ids.size());
    ids[token] = next;
  }
  std::vector<std::vector<std::string>> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(SplitPattern::gpt2, text, at, false);
    auto& word = words.emplace_back();
    for (; at < end; ++at) word.push_back(to_characters(text.substr(at, 1)));
  }
  std::vector<std::string> merges;
  while (static_cast<std::int64_t>(ids.size()) < vocabulary) {
    std::map<std::pair<int, int>, std::int64_t> counts;
    for (const auto& word : words) {
      for (std::size_t i = 1; i < word.size(); ++i) ++counts[{ids.at(word[i - 1]), ids.at(word[i])}];
    }
    std::pair<int, int> best;
    std::int64_t most = 0;
    for (const auto& [pair, count] : counts) {
      if (count > most) best = pair, most = count;
    }
    if (most < min_frequency) break;
    const auto text_of = [&](int id) {
      return std::ranges::find_if(ids, [&](const auto& token) { return token.second == id; })->first;
    };
    const std::string left = text_of(best.first), right = text_of(best.second);
    merges.push_back(left + " " + right);
    ids.emplace(left + right, static_cast<int>(ids.size()));
    for (auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != left || word[i + 1] != right) continue;
        word[i] += word[i + 1];
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(Trainer, AsTheRuleSays) {
  for (const std::uint64_t seed : testing::seeds(5)) {
    const std::string text = valid_utf8(MixedText(seed).text(3000));
    EXPECT_EQ(merges_of(trained({.vocabulary = 330, .min_frequency = 3, .special = {}}, text)),
              merges_slowly(text, 330, 3))
        << "seed " << seed;
  }
}

TEST(Trainer, EqualsTheLibrary) {
  const std::string text = MixedText(1).text(1 << 20);
  EXPECT_EQ(hash_of(trained({.vocabulary = 3000}, text)), "5634e9309452a32e");
  EXPECT_EQ(hash_of(trained({.vocabulary = 3000, .split = SplitPattern::llama3}, text, 1000)), "5d5bb5eb21f16b52");
}

TEST(Trainer, EqualsTheLibraryOnTinyShakespeare) {
  const auto shared = testing::shared_dir();
  if (shared.empty()) GTEST_SKIP() << "no data on this machine (KOLO_SHARED_DIR)";
  const std::string text = testing::read_file(shared / "data/tinyshakespeare.txt");
  const TokenizerDefinition gpt2 = trained({.vocabulary = 50000}, text);
  EXPECT_EQ(hash_of(gpt2), "c0857fdbacfc2960");
  EXPECT_EQ(hash_of(trained({.vocabulary = 50000, .split = SplitPattern::llama3}, text)), "529ab73987557622");
}

TEST(Trainer, WhatCannotBeTrained) {
  const auto error = [](const TrainerSettings& settings) { return error_of([&] { (void)trained(settings, "a"); }); };
  EXPECT_EQ(error({.vocabulary = 256}),
            "a vocabulary of 256 has no room for 1 special tokens and 256 bytes; give a larger one");
  EXPECT_EQ(error({.special = {"<s>", "<s>"}}),
            "the special token '<s>' is empty, no UTF-8, or there twice; give it once");
  EXPECT_EQ(error({.special = {""}}), "the special token '' is empty, no UTF-8, or there twice; give it once");
  EXPECT_EQ(error({.special = {"a\xff"}}),
            "the special token 'a\xff' is empty, no UTF-8, or there twice; give it once");
  EXPECT_EQ(trained({.vocabulary = 300}, "ab ab").size(), 258) << "no pair is left that occurs twice";
}

}  // namespace
}  // namespace kolo::models

#include "models/tokenizer/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/merger.h"
#include "models/tokenizer/splitter.h"

namespace kolo::models {
namespace {

using Id = std::int32_t;

/// A different piece of the texts, as the tokens that are joined so far.
struct Word {
  std::vector<Id> tokens;
  std::int64_t count = 0;
};

/// A pair that may be joined next: by its count when that was noted, in words that had it then.
struct Entry {
  std::int64_t count;
  TokenPair pair;
  std::vector<std::size_t> words;

  bool operator<(const Entry& other) const {  // of equal counts the least ids come first
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  explicit Learner(std::vector<Word> words) : words_(std::move(words)) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::vector<Id>& tokens = words_[i].tokens;
      for (std::size_t k = 1; k < tokens.size(); ++k) note({tokens[k - 1], tokens[k]}, 1, i);
    }
    queue_noted();
  }

  /// The pair to be joined next, and the words that have it; none if there is none so frequent.
  bool next(std::int64_t min_frequency, Entry& entry) {
    while (!queue_.empty()) {
      entry = std::move(const_cast<Entry&>(queue_.top()));  // it is popped before the queue compares again
      queue_.pop();
      const std::int64_t count = counts_.at(entry.pair);
      if (count == entry.count) return count >= std::max<std::int64_t>(min_frequency, 1);
      entry.count = count;
      queue_.push(std::move(entry));
    }
    return false;
  }

  void join(const Entry& entry, Id joined) {
    for (const std::size_t word : entry.words) join_in(word, entry.pair, joined);
    queue_noted();
  }

 private:
  void note(const TokenPair& pair, std::int64_t times, std::size_t word) {
    counts_[pair] += times * words_[word].count;
    if (times < 0) return;
    auto& words = noted_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);  // words come one after the other
  }

  void queue_noted() {
    for (auto& [pair, words] : noted_) {
      if (const std::int64_t count = counts_.at(pair); count > 0) queue_.push({count, pair, std::move(words)});
    }
    noted_.clear();
  }

  void join_in(std::size_t word, const TokenPair& pair, Id joined) {
    std::vector<Id>& tokens = words_[word].tokens;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (tokens[i] != pair.first || tokens[i + 1] != pair.second) continue;
      tokens[i] = joined;
      tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      if (i > 0) {
        note({tokens[i - 1], pair.first}, -1, word);
        note({tokens[i - 1], joined}, 1, word);
      }
      if (i + 1 < tokens.size()) {
        note({pair.second, tokens[i + 1]}, -1, word);
        note({joined, tokens[i + 1]}, 1, word);
      }
    }
  }

  std::vector<Word> words_;
  std::unordered_map<TokenPair, std::int64_t, TokenPairHash> counts_;
  std::map<TokenPair, std::vector<std::size_t>> noted_;  // since pairs were queued last
  std::priority_queue<Entry> queue_;
};

/// Tokens by their text; ids in the order in which they come.
class Vocabulary {
 public:
  Id add(const std::string& text) {
    const auto [at, fresh] = ids_.emplace(text, static_cast<Id>(texts_.size()));
    if (fresh) texts_.push_back(text);
    return at->second;
  }
  Id joined(const TokenPair& pair) { return add(text(pair.first) + text(pair.second)); }

  std::int64_t size() const { return static_cast<std::int64_t>(texts_.size()); }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  const std::string& text(Id id) const { return texts_[static_cast<std::size_t>(id)]; }

  std::vector<std::string> texts_;
  std::unordered_map<std::string, Id> ids_;
};

}  // namespace

void TokenizerTrainer::add(std::string_view part, bool last) {
  parts_.add(part, last, [&](std::string_view text, bool open) {
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t end = piece_end(settings_.split, text, at, open);
      if (end == 0) break;
      const std::string_view piece = text.substr(at, end - at);
      if (const auto known = counts_.find(piece); known != counts_.end()) {
        ++known->second;
      } else {
        counts_.emplace(piece, 1);
      }
      at = end;
    }
    return at;
  });
}

TokenizerDefinition TokenizerTrainer::train() const {
  TokenizerDefinition result{.split = settings_.split};
  Vocabulary vocabulary;
  for (const std::string& token : settings_.special) {
    const Id id = vocabulary.add(token);
    if (token.empty() || token != valid_utf8(token) || id + 1 != vocabulary.size() || id != Id(result.added.size()))
      throw ModelError(
          fmt::format("the special token {} is empty, no UTF-8, or there twice; give it once", in_quotes(token)));
    result.added.push_back({.id = id, .content = token});
  }
  auto alphabet = byte_characters();
  std::ranges::sort(alphabet);
  std::map<char32_t, Id> ids;  // of the bytes' characters
  for (const char32_t character : alphabet) {
    std::string text;
    append_utf8(character, text);
    ids[character] = vocabulary.add(text);
  }
  if (vocabulary.size() > settings_.vocabulary)
    throw ModelError(
        fmt::format("a vocabulary of {} has no room for {} special tokens and 256 bytes; give a larger one",
                    settings_.vocabulary, settings_.special.size()));

  const auto characters = byte_characters();
  std::vector<Word> words;
  for (const auto& [piece, count] : counts_) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char byte : piece) word.tokens.push_back(ids.at(characters[static_cast<unsigned char>(byte)]));
  }
  Learner learner(std::move(words));
  Entry entry;
  while (vocabulary.size() < settings_.vocabulary && learner.next(settings_.min_frequency, entry)) {
    const Id joined = vocabulary.joined(entry.pair);
    result.merges.push_back(entry.pair);
    learner.join(entry, joined);
  }
  // A pair that came again, since another one had given the same token, is where it was last.
  std::unordered_map<TokenPair, std::size_t, TokenPairHash> last;
  for (std::size_t i = 0; i < result.merges.size(); ++i) last[result.merges[i]] = i;
  std::vector<TokenPair> merges;
  for (std::size_t i = 0; i < result.merges.size(); ++i) {
    if (last.at(result.merges[i]) == i) merges.push_back(result.merges[i]);
  }
  result.merges = std::move(merges);
  result.vocabulary = vocabulary.take();
  return result;
}

}  // namespace kolo::models

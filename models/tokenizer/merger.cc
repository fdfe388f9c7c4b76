#include "models/tokenizer/merger.h"

#include <queue>

namespace kolo::models {
namespace {

/// A merge that was possible when it was noted, of the tokens at `place` and behind it.
struct Candidate {
  std::int32_t rank;
  std::int32_t joined;
  std::size_t place;

  bool operator<(const Candidate& other) const {  // the queue's top is the largest
    return rank != other.rank ? rank > other.rank : place > other.place;
  }
};

struct Link {
  std::size_t before, behind;  // places; none: that of no token
};

}  // namespace

const Merger::Merge* Merger::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find({left, right});
  return found == merges_.end() ? nullptr : &found->second;
}

// A queue has what can be joined. What was joined stays at the left token's place, and the right one's is skipped from
// then on; candidates that have become stale are dropped when they come up. One whose tokens were replaced is still
// good if those there now give the same token: so has it the library `tokenizers`, and so ids are equal.
void Merger::join(std::vector<std::int32_t>& tokens) const {
  constexpr std::int32_t gone = -1;
  const std::size_t none = tokens.size();
  std::priority_queue<Candidate> candidates;
  std::vector<Link> links(tokens.size());
  const auto note = [&](std::size_t place, std::size_t behind) {
    if (const Merge* const merge = find(tokens[place], tokens[behind]))
      candidates.push({merge->rank, merge->joined, place});
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    links[i] = {i == 0 ? none : i - 1, i + 1};
    if (i + 1 < tokens.size()) note(i, i + 1);
  }
  while (!candidates.empty()) {
    const auto [rank, joined, place] = candidates.top();
    candidates.pop();
    const std::size_t right = links[place].behind;
    if (tokens[place] == gone || right == none) continue;
    const Merge* const merge = find(tokens[place], tokens[right]);
    if (merge == nullptr || merge->joined != joined) continue;
    tokens[place] = joined;
    tokens[right] = gone;
    const std::size_t behind = links[place].behind = links[right].behind;
    if (behind != none) links[behind].before = place;
    if (links[place].before != none) note(links[place].before, place);
    if (behind != none) note(place, behind);
  }
  std::erase(tokens, gone);
}

}  // namespace kolo::models

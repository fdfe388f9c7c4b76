#include "apps/cli/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>

#include "apps/cli/terminal.h"

namespace kolo::cli {
namespace {

class SessionRanks final : public RankGroup {
 public:
  explicit SessionRanks(Session& session) : session_(session) {}
  int rank() const override { return session_.rank(); }
  int size() const override { return session_.size(); }
  int least(int mine) const override {
    std::int64_t number = mine;
    session_.all_reduce("lowest rank with a problem", view_scalar(number), {.op = ReduceOp::min});
    return static_cast<int>(number);
  }
  std::vector<std::string> gather(const std::string& mine) const override {
    return session_.all_gather_object("what must agree", mine);
  }

 private:
  Session& session_;
};

/// "rank 3", "ranks 0-2, 5".
std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    for (last = first; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) ++last;
    if (last == first + 1) last = first;  // two are not worth a range
    text += first == 0 ? "" : ", ";
    text += first == last ? fmt::format("{}", ranks[first]) : fmt::format("{}-{}", ranks[first], ranks[last]);
  }
  return text;
}

/// "rank 0: 0.1; ranks 1, 2: 0.2", sides in the order of their lowest ranks; long values are cut.
std::string sides_of(const std::vector<std::string>& values) {
  constexpr std::size_t longest = 200;
  std::string text;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    std::vector<int> side;
    for (std::size_t other = 0; other < values.size(); ++other) {
      if (values[other] == values[rank]) side.push_back(static_cast<int>(other));
    }
    if (side.front() < static_cast<int>(rank)) continue;  // listed
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", rank_list(side), values[rank].substr(0, longest));
  }
  return text;
}

std::string joined(std::span<const Agreed> rows) {
  std::string text;
  for (const Agreed& row : rows) text += row.value + '\0';
  return text;
}

/// Row `row` of what joined() made.
std::string value_of(const std::string& text, std::size_t row) {
  std::size_t begin = 0;
  for (; row > 0; --row) begin = text.find('\0', begin) + 1;
  return text.substr(begin, text.find('\0', begin) - begin);
}

}  // namespace

std::string problem_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "there is not enough memory; use smaller sizes or fewer ranks on this machine";
}

void collectively(const RankGroup& ranks, const std::function<void()>& work) {
  std::optional<std::string> problem;
  try {
    work();
  } catch (const std::exception& error) {
    problem = problem_of(error);
  }
  const int speaker = ranks.least(problem ? ranks.rank() : ranks.size());
  if (speaker == ranks.size()) return;
  if (speaker == ranks.rank()) print_problem(*problem);
  throw UsageError::reported();
}

void collectively(Session& session, const std::function<void()>& work) {
  collectively(SessionRanks(session), work);
}

void check_same(const RankGroup& ranks, std::span<const Agreed> mine) {
  const auto texts = ranks.gather(joined(mine));
  collectively(ranks, [&] {
    for (std::size_t row = 0; row < mine.size() && ranks.rank() == 0; ++row) {
      std::vector<std::string> values;
      for (const std::string& text : texts) values.push_back(value_of(text, row));
      if (std::ranges::count(values, values[0]) == ranks.size()) continue;
      throw UsageError(fmt::format("the ranks have different values of {} ({}); give all of them the same",
                                   mine[row].name, sides_of(values)));
    }
  });
}

void check_same(Session& session, std::span<const Agreed> mine) {
  check_same(SessionRanks(session), mine);
}

}  // namespace kolo::cli

#include "apps/cli/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include <kolo/detail/hash.h>

#include "apps/cli/terminal.h"
#include "apps/train/options/options.h"

namespace kolo::train {
namespace {

using Sides = std::map<std::uint64_t, std::vector<int>>;  // fingerprint of a value → the ranks that have it

/// Every rank's text, by rank; long ones are cut.
std::vector<std::string> values_of_all(Session& session, const std::string& mine) {
  constexpr std::size_t longest = 200;
  const auto ranks = static_cast<std::size_t>(session.size());
  std::vector<std::uint8_t> bytes(longest), all(longest * ranks);
  std::copy_n(mine.begin(), std::min(mine.size(), longest), bytes.begin());
  session.all_gather("values that differ", view(std::span(bytes)), view(std::span(all)));
  std::vector<std::string> values;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    values.emplace_back(first, std::find(first, first + longest, 0));
  }
  return values;
}

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

/// "rank 0: 0.1; ranks 1, 2: 0.2", sides in the order of their lowest ranks.
std::string to_string(const Sides& sides, const std::vector<std::string>& values) {
  std::map<int, std::string> parts;
  for (const auto& [print, ranks] : sides) {
    parts[ranks.front()] = fmt::format("{}: {}", rank_list(ranks), values[static_cast<std::size_t>(ranks.front())]);
  }
  std::string text;
  for (const auto& [rank, part] : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

}  // namespace

std::string problem_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "there is not enough memory; use a smaller model, batch or data set, or fewer ranks on this machine";
}

void together(Session& session, const std::function<void()>& work) {
  std::optional<std::string> problem;
  try {
    work();
  } catch (const std::exception& error) {
    problem = problem_of(error);
  }
  std::int64_t speaker = problem ? session.rank() : session.size();
  session.all_reduce("lowest rank with a problem", view_scalar(speaker), {.op = ReduceOp::min});
  if (speaker == session.size()) return;
  if (speaker == session.rank()) print_problem(*problem);
  throw Stopped();
}

void check_same(Session& session, std::span<const Agreed> mine) {
  const auto ranks = static_cast<std::size_t>(session.size());
  std::vector<std::uint64_t> prints, all_prints(mine.size() * ranks);
  for (const Agreed& row : mine) prints.push_back(detail::Hash().add(row.value).value());
  session.all_gather("fingerprints of what must agree", view(std::span(prints)), view(std::span(all_prints)));
  for (std::size_t row = 0; row < mine.size(); ++row) {
    Sides sides;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sides[all_prints[rank * mine.size() + row]].push_back(static_cast<int>(rank));
    }
    if (sides.size() == 1) continue;
    const auto values = values_of_all(session, mine[row].value);
    together(session, [&] {
      if (session.rank() > 0) return;
      throw UsageError(fmt::format("the ranks have different values of {} ({}); give all of them the same",
                                   mine[row].name, to_string(sides, values)));
    });
  }
}

}  // namespace kolo::train

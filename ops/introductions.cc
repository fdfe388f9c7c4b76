#include "ops/introductions.h"

#include <vector>

namespace kolo {
namespace {

/// The next backend's part of what a member said, which `rest` begins with.
Introduction take_next(std::span<const std::int64_t>& rest) {
  if (rest.empty() || rest[0] < 0 || static_cast<std::size_t>(rest[0]) >= rest.size())
    throw Error(ErrorCode::backend, "malformed introduction (of a rank's backends)");
  const auto length = static_cast<std::size_t>(rest[0]);
  const auto said = rest.subspan(1, length);
  rest = rest.subspan(1 + length);
  return {said.begin(), said.end()};
}

}  // namespace

Introduction introduction_of(const BackendList& backends) {
  Introduction all;
  for (const auto& backend : backends) {
    const Introduction said = backend->introduction();
    all.push_back(static_cast<std::int64_t>(said.size()));
    all.insert(all.end(), said.begin(), said.end());
  }
  return all;
}

void introduce(BackendList& backends, std::span<const Introduction> members) {
  std::vector<std::span<const std::int64_t>> rest(members.begin(), members.end());
  std::erase_if(backends, [&](const auto& backend) {
    std::vector<Introduction> said;
    for (auto& of_member : rest) said.push_back(take_next(of_member));
    return !backend->introduce(said);
  });
}

}  // namespace kolo

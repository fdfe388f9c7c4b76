#include "ops/host/gathering.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include <kolo/error.h>

namespace kolo {

std::vector<Introduction> all_introductions(Gathering& ranks, const Introduction& mine) {
  std::vector<Introduction> result;
  for (const auto& bytes : ranks.all(std::as_bytes(std::span(mine)))) {
    Introduction& said = result.emplace_back(bytes.size() / sizeof(std::int64_t));
    if (!bytes.empty()) std::memcpy(said.data(), bytes.data(), bytes.size());
  }
  return result;
}

bool introduce_all(Gathering& ranks, Backend& backend, const std::function<void(const std::string& why)>& report) {
  const auto members = all_introductions(ranks, backend.introduction());
  std::string problem;
  bool serves = false;
  try {
    serves = backend.introduce(members);
  } catch (const Error& error) {
    problem = error.what();
  }
  const auto failed = ranks.all_values<std::uint8_t>(problem.empty() ? 0 : 1);
  const auto lowest = static_cast<int>(std::ranges::find(failed, 1) - failed.begin());
  if (lowest == ranks.rank()) report(problem);
  return serves && lowest == ranks.size();
}

std::shared_ptr<Region> shared_region(Gathering& ranks, std::span<const int> sharing, std::size_t bytes,
                                      Reserved when) {
  struct Origin {
    std::int64_t process, descriptor, file;
  } mine{getpid(), -1, 0};
  std::shared_ptr<Region> region;
  std::shared_ptr<SharedRegion> shared;
  const auto attempt = [&](auto make) {
    try {
      region = make();
    } catch (const Error&) {
      region = nullptr;
    }
  };
  if (sharing.size() == 1) {
    attempt([&] { return heap_region(bytes); });
  } else if (ranks.rank() == sharing.front()) {
    attempt([&] { return shared = SharedRegion::create(bytes, when); });
    if (region) mine = {mine.process, shared->descriptor(), shared->file()};
  }
  const Origin origin = ranks.all_values(mine)[static_cast<std::size_t>(sharing.front())];
  if (ranks.rank() != sharing.front() && origin.descriptor >= 0) {
    attempt([&] {
      return shared = SharedRegion::open(static_cast<int>(origin.process), static_cast<int>(origin.descriptor),
                                         static_cast<std::uint32_t>(origin.file), bytes, when);
    });
  }
  const auto have = ranks.all_values<std::uint8_t>(region ? 1 : 0);
  if (std::ranges::find(have, 0) != have.end()) return nullptr;
  if (shared) shared->close_descriptor();
  return region;
}

}  // namespace kolo

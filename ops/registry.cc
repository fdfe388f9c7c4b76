#include "ops/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <kolo/error.h>

namespace kolo {
namespace {

constexpr std::array<std::string_view, 4> known_settings{"auto", "local", "shm", "mpi"};

[[noreturn]] void fail_unknown(std::string_view setting) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown backend \"{}\" (known: {})", setting, fmt::join(known_settings, ", ")));
}

[[noreturn]] void fail_not_offered(std::string_view setting, std::span<const BackendOffer> offers) {
  std::vector<std::string_view> names{"auto"};
  for (const BackendOffer& offer : offers) names.push_back(offer.name);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("backend \"{}\" cannot serve this world (here: {})", setting, fmt::join(names, ", ")));
}

}  // namespace

BackendList make_backends(std::string_view setting, std::span<const BackendOffer> offers) {
  BackendList backends;
  for (const BackendOffer& offer : offers) {
    const bool asked = setting == offer.name || (setting == "auto" && !offer.only_by_name);
    if (auto backend = asked ? offer.make() : nullptr) backends.push_back(std::move(backend));
  }
  if (!backends.empty()) return backends;
  if (std::ranges::find(known_settings, setting) == known_settings.end()) fail_unknown(setting);
  fail_not_offered(setting, offers);
}

}  // namespace kolo

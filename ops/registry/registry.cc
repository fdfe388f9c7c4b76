#include "ops/registry/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <kolo/error.h>

#include "ops/local/backend.h"
#include "ops/shm/backend.h"
#include "ops/shm/pairs.h"
#include "ops/two_level/domains.h"
#include "ops/two_level/node_placement.h"
#include "runtime/types/rank_counts.h"

namespace kolo {
namespace {

constexpr std::array<std::string_view, 4> known_settings{"auto", "local", "shm", "mpi"};

[[noreturn]] void fail_unknown(std::string_view setting) {
  throw Error(ErrorCode::invalid_argument, fmt::format("KOLO_BACKEND is '{}', which is no backend; set it to one of {}",
                                                       setting, fmt::join(known_settings, ", ")));
}

[[noreturn]] void fail_not_offered(std::string_view setting, std::span<const BackendOffer> offers) {
  std::vector<std::string_view> names{"auto"};
  for (const BackendOffer& offer : offers) names.push_back(offer.name);
  const std::string_view reason = setting == "local" ? "it serves ranks of one process, and these are processes"
                                  : setting == "shm" ? "it serves ranks that share one node's memory, and these do not"
                                                     : "it serves processes that a launcher started, and these are not";
  throw Error(ErrorCode::invalid_argument,
              fmt::format("KOLO_BACKEND is '{}', which cannot serve this world ({}); set it to {} or {}", setting,
                          reason, fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
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

std::vector<int> pretended_domains(const Config& config, int ranks) {
  if (config.fake_domains.empty()) return {};
  return parts_of_ranks("KOLO_FAKE_DOMAINS", "at each cache", config.fake_domains, ranks);
}

std::vector<std::unique_ptr<Backend>> thread_domains_backends(std::vector<std::unique_ptr<Backend>> flat,
                                                              const std::vector<int>& domain_of) {
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Introduction> members;
  for (auto& of_rank : flat) {
    backends.push_back(domains_backend(std::move(of_rank), domain_of, static_cast<int>(backends.size())));
    members.push_back(backends.back()->introduction());
  }
  for (const auto& backend : backends) (void)backend->introduce(members);
  return backends;
}

std::vector<BackendList> thread_backends(std::string_view setting, int ranks, bool one_node,
                                         std::span<Doorbell> doorbells, const std::vector<int>& domain_of) {
  auto local = local_backends(ranks, doorbells);
  std::vector<std::unique_ptr<Backend>> shared(local.size());
  if (setting == "shm" && one_node) shared = shm_thread_backends(ranks, doorbells);
  if (shared.front() && spans_shared_nodes(domain_of)) shared = thread_domains_backends(std::move(shared), domain_of);
  auto pairs = shm_thread_pairs_backends(ranks, doorbells);
  std::vector<BackendList> result;
  for (std::size_t rank = 0; rank < local.size(); ++rank) {
    const std::array<BackendOffer, 2> offers{BackendOffer{"local", [&] { return std::move(local[rank]); }},
                                             BackendOffer{"shm", [&] { return std::move(shared[rank]); }, true}};
    result.push_back(make_backends(setting, offers));
    result.back().push_back(std::move(pairs[rank]));
  }
  return result;
}

}  // namespace kolo

#include "ops/two_level/domains.h"

#include <numeric>
#include <utility>

#include "ops/introductions.h"
#include "ops/two_level/backend.h"
#include "ops/two_level/node_placement.h"

namespace kolo {
namespace {

/// As large as the chunks of what ranks of a node share, so that they stay in a cache.
constexpr ChunkRule chunks_of_domains{256 << 10, 64 << 10};

class DomainsBackend final : public Backend {
 public:
  /// `introduced`: flat, if it is. `fresh`: what is not: flat, and behind it the sums in two levels.
  DomainsBackend(BackendList introduced, BackendList fresh, std::vector<int> domain_of)
      : introduced_(std::move(introduced)),
        fresh_(std::move(fresh)),
        flat_(introduced_.empty() ? *fresh_.front() : *introduced_.front()),
        sums_(*fresh_.back()),
        domain_of_(std::move(domain_of)) {}

  std::string_view name() const override { return "domains"; }
  bool supports(const Signature& signature) const override { return flat_.supports(signature); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    const bool in_levels = reduces(bucket.signature.kind) && sums_.supports(bucket.signature);
    return in_levels ? sums_.start(bucket) : flat_.start(bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    auto flat = flat_.for_group(group);
    std::vector<int> domain_of;
    for (const int rank : group.ranks) domain_of.push_back(domain_of_[static_cast<std::size_t>(rank)]);
    if (!flat || !spans_shared_nodes(domain_of)) return flat;
    BackendList fresh;
    fresh.push_back(std::move(flat));
    fresh.push_back(sums_.for_group(group));
    return std::make_unique<DomainsBackend>(BackendList(), std::move(fresh), std::move(domain_of));
  }
  Introduction introduction() override { return introduction_of(fresh_); }
  bool introduce(std::span<const Introduction> members) override {
    const std::size_t all = fresh_.size();
    kolo::introduce(fresh_, members);
    return fresh_.size() == all;
  }
  std::uint64_t staged_bytes() const override { return flat_.staged_bytes() + sums_.staged_bytes(); }
  std::shared_ptr<MemorySource> memory() override { return flat_.memory(); }
  std::string findings() const override { return flat_.findings() + sums_.findings(); }
  void abandon() noexcept override {
    flat_.abandon();
    sums_.abandon();
  }

 private:
  BackendList introduced_, fresh_;
  Backend& flat_;
  Backend& sums_;
  std::vector<int> domain_of_;
};

}  // namespace

std::unique_ptr<Backend> domains_backend(std::unique_ptr<Backend> flat, std::vector<int> domain_of, int rank) {
  GroupInfo all{0, "world", std::vector<int>(domain_of.size()), rank};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  BackendList introduced, fresh;
  fresh.push_back(two_level_backend(flat->for_group(all), nullptr, domain_of, rank, chunks_of_domains, true));
  introduced.push_back(std::move(flat));
  return std::make_unique<DomainsBackend>(std::move(introduced), std::move(fresh), std::move(domain_of));
}

}  // namespace kolo

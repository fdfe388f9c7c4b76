// How process groups come and go.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "apps/torch/c10d_backend.h"
#include "apps/torch/c10d_store.h"

namespace kolo_torch {
namespace {

/// What a rank that does not come is waited for; the process ends when its program wants to.
kolo::Config config_of(std::chrono::milliseconds timeout) {
  std::vector<std::string> unknown;
  kolo::Config config = kolo::Config::from_environment(&unknown);
  config.may_exit = false;
  config.stall_abort_seconds = std::max(1e-3, std::chrono::duration<double>(timeout).count());
  return config;
}

std::shared_ptr<Collectives> make(const C10dBackend::About& about, const Collectives* parent) {
  std::vector<int> ranks = about.ranks;
  std::shared_ptr<Job> job;
  if (parent && !parent->left() && !parent->job()->has_lost_a_rank() && std::ranges::is_sorted(ranks)) {
    job = parent->job();
    const auto& of_parent = parent->group().info()->ranks;
    for (int& rank : ranks) rank = of_parent.at(static_cast<std::size_t>(rank));
  } else {
    kolo::Config config = config_of(about.timeout);
    if (!ranks.empty()) config.fake_nodes.clear();  // they are those of all ranks
    job = std::make_shared<Job>(std::make_unique<C10dStore>(about.store), about.rank, about.size, config);
    ranks.resize(static_cast<std::size_t>(about.size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  kolo::Group group = job->session()->new_group(ranks, {.order = kolo::Order::program});
  job->enter();
  return std::make_shared<Collectives>(std::move(job), std::move(group));
}

}  // namespace

C10dBackend::C10dBackend(const About& about, const Collectives* parent)
    : Backend(about.rank, about.size),
      options_(c10::make_intrusive<C10dOptions>(about.name, about.timeout)),
      name_(about.name),
      collectives_(make(about, parent)) {
  options_->group_name = about.group_name;
  options_->global_ranks_in_group.assign(about.ranks.begin(), about.ranks.end());
  init();
}

C10dBackend::~C10dBackend() {
  shutdown();
}

void C10dBackend::shutdown() {
  collectives_->leave();
}

void C10dBackend::abort() {
  collectives_->abort();
}

C10dBackend::About C10dBackend::child(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                      std::chrono::milliseconds timeout, const std::string& group_name) const {
  const auto mine = std::ranges::find(ranks, getRank());
  return {.name = name_,
          .store = store,
          .rank = mine == ranks.end() ? -1 : static_cast<int>(mine - ranks.begin()),
          .size = static_cast<int>(ranks.size()),
          .timeout = timeout,
          .group_name = group_name,
          .ranks = ranks};
}

c10::intrusive_ptr<c10d::Backend> C10dBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& options) {
  const About about = child(store, ranks, options ? options->timeout : options_->timeout,
                            options ? options->group_name : std::string());
  if (about.rank < 0) return {};
  return c10::make_intrusive<C10dBackend>(about, collectives_.get());
}

at::Tensor C10dBackend::allocateTensor(long elements, at::TensorOptions options) {
  const auto& job = collectives_->job();
  return job->pool.allocate(*job->session(), elements, options);
}

}  // namespace kolo_torch

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <kolo/backend.h>
#include <kolo/config.h>

#include "ops/host/doorbell.h"

namespace kolo {

/// A backend that a world can have.
struct BackendOffer {
  std::string_view name;                           ///< as its Backend::name() says
  std::function<std::unique_ptr<Backend>()> make;  ///< null, on all ranks, if it cannot be made
  bool only_by_name = false;                       ///< "auto" leaves it out
};

/// Makes the backends of a setting: all offers, in the order given, for "auto"; else the one of that name.
///
/// Throws Error{invalid_argument} if `setting` is no known name, or if the name is known but not on offer: a world of
/// processes has no "local", a world of threads no "mpi", a world on several nodes no "shm".
BackendList make_backends(std::string_view setting, std::span<const BackendOffer> offers);

/// The backends of host tensors for ranks that are threads of this process: element r belongs to rank r.
///
/// one_node   all ranks are on one node
/// domain_of  by rank, those that share a cache, if shared memory is to add in two levels; empty: all do
/// doorbells  one per rank, rung when a peer has advanced an operation; they outlive the backends
std::vector<BackendList> thread_backends(std::string_view setting, int ranks, bool one_node,
                                         std::span<Doorbell> doorbells, const std::vector<int>& domain_of = {});

/// By rank: what KOLO_FAKE_DOMAINS says; empty if it is not set.
std::vector<int> pretended_domains(const Config& config, int ranks);

/// domains_backend() over those of shm_thread_backends(), introduced.
std::vector<std::unique_ptr<Backend>> thread_domains_backends(std::vector<std::unique_ptr<Backend>> flat,
                                                              const std::vector<int>& domain_of);

}  // namespace kolo

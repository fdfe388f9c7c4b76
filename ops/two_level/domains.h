#pragma once

#include <memory>
#include <vector>

#include <kolo/backend.h>

namespace kolo {

/// Collectives among ranks of one node whose cores share several caches. Sums are taken in two levels: in rank order
/// among the ranks of a cache's domain, then in the order of domains, so that little has to cross from one cache to
/// another. What is only carried does not: the first rank of a domain that fetches it brings it into the cache where
/// the others find it.
///
/// flat       among all these ranks, which serves what is carried, and makes the groups of both levels; introduced
/// domain_of  by rank of `flat`; spans_shared_nodes()
///
/// Has to be introduced, as those of groups. A group within one domain, or with one rank in each, gets flat's backend.
std::unique_ptr<Backend> domains_backend(std::unique_ptr<Backend> flat, std::vector<int> domain_of, int rank);

}  // namespace kolo

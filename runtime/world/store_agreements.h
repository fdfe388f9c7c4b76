#pragma once

#include <memory>
#include <string>

#include <kolo/backend.h>
#include <kolo/store.h>

namespace kolo {

/// Finds the largest of small numbers through a store, where ranks of different nodes have nothing else: what backends
/// of GPUs agree on (see HostExchange). Slow: every look at the store is a request to its server, which the caller
/// waits for. Serves all_reduce of u64 by maximum, and nothing else; groups get one by for_group(). Keys begin with
/// `prefix`, and are removed. The store must outlive it.
std::unique_ptr<Backend> store_agreements(Store& store, std::string prefix, int rank, int size);

}  // namespace kolo

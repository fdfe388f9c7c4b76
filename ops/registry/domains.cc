#include <algorithm>
#include <map>
#include <utility>

#include "ops/host/machine.h"
#include "ops/registry/processes.h"
#include "ops/registry/registry.h"

namespace kolo {

std::vector<int> domains_of(const Config& config, const std::vector<int>& node_of, Gathering& ranks) {
  const auto domains = ranks.all_values(domains_of_cores(own_cores()));
  const std::vector<int> pretended = pretended_domains(config, ranks.size());
  std::map<int, Domains> least;  // by node: -1 where one rank's cores have none
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    Domains& of_node = least.try_emplace(node_of[rank], domains[rank]).first->second;
    of_node = {std::min(of_node.cache, domains[rank].cache), std::min(of_node.memory, domains[rank].memory)};
  }
  std::map<std::pair<int, int>, int> numbers;
  std::vector<int> domain_of;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    const Domains known = least.at(node_of[rank]);
    int domain = 0;
    if (!pretended.empty())
      domain = pretended[rank];
    else if (known.cache >= 0)
      domain = domains[rank].cache;
    else if (known.memory >= 0)
      domain = domains[rank].memory;
    const auto next = static_cast<int>(numbers.size());
    domain_of.push_back(numbers.try_emplace({node_of[rank], domain}, next).first->second);
  }
  return domain_of;
}

}  // namespace kolo

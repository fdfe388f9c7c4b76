#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include <kolo/error.h>

#include "ops/host/machine.h"
#include "ops/registry/processes.h"
#include "ops/shm/table_file.h"

namespace kolo {
namespace {

constexpr std::array<std::pair<std::string_view, ShmWay>, 3> methods{
    {{"ring", ShmWay::ring}, {"read", ShmWay::read}, {"mapped", ShmWay::mapped}}};

/// What the file holds; empty if it has nothing that can be used, of which it reports the reason.
std::string text_of_file(const Config& config) {
  const std::string path = tuning_path(config);
  if (path.empty()) return "";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  std::string why;
  if (!file) {
    if (config.tuning.empty() || config.shm_method == "measure") return "";
    why = "it cannot be read";
  } else {
    try {
      (void)tables_of_text(text.str(), machine_name());
      return text.str();
    } catch (const Error& error) {
      why = error.what();
    }
  }
  report(config,
         fmt::format("the tuning file {} is not used: {}; kolo measures by itself (kolo-bench --tune writes a new "
                     "one)",
                     path, why));
  return "";
}

}  // namespace

std::shared_ptr<const ShmKnown> known_of_settings(const Config& config, Gathering& ranks) {
  const int first = ranks.lowest_on_node();
  const bool reads = first == ranks.rank() && (config.shm_method == "auto" || config.shm_method == "measure");
  const std::string mine = reads ? text_of_file(config) : "";
  const auto texts = ranks.all(std::as_bytes(std::span(mine)));
  const auto& read = texts[static_cast<std::size_t>(first)];
  auto known = std::make_shared<ShmKnown>();
  const auto method = std::ranges::find(methods, config.shm_method, &std::pair<std::string_view, ShmWay>::first);
  if (method != methods.end()) known->forced = method->second;
  known->measures = config.shm_method == "measure";
  if (!read.empty())
    known->tables = tables_of_text({reinterpret_cast<const char*>(read.data()), read.size()}, machine_name());
  if (config.banner && first == ranks.rank() && !known->tables.empty()) {
    std::vector<int> ranks_known;
    for (const auto& [count, table] : known->tables) ranks_known.push_back(count);
    report(config, fmt::format("how large tensors travel within a node was measured before, for {} ranks ({})",
                               fmt::join(ranks_known, ", "), tuning_path(config)));
  }
  return known;
}

}  // namespace kolo

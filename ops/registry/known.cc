#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
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

void refuse(const Config& config, const std::string& path, const std::string& why) {
  report(config,
         fmt::format("the tuning file {} is not used: {}; kolo measures by itself (kolo-bench --tune writes a new one)",
                     path, why));
}

constexpr std::uintmax_t largest_file = 1 << 20;  // bytes, many times what has ever been noted

/// The machine, in a line, and what the file holds; empty if there is none.
std::string read_file(const Config& config, const std::string& path) {
  if (path.empty()) return "";
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  if (!is_file && std::filesystem::exists(path, error)) {  // to open a pipe may wait for ever
    refuse(config, path, "it is no file");
    return "";
  }
  if (is_file && std::filesystem::file_size(path, error) > largest_file) {
    refuse(config, path, "it is too large for one");
    return "";
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << machine_name() << '\n' << file.rdbuf();
  if (file) return text.str();
  if (!config.tuning.empty() && config.shm_method != "measure") refuse(config, path, "it cannot be read");
  return "";
}

}  // namespace

std::shared_ptr<const ShmKnown> known_of_settings(const Config& config, Gathering& ranks) {
  const int first = ranks.lowest_on_node();
  const bool reads = first == ranks.rank();
  auto known = std::make_shared<ShmKnown>();
  const auto method = std::ranges::find(methods, config.shm_method, &std::pair<std::string_view, ShmWay>::first);
  if (method != methods.end()) known->forced = method->second;
  known->measures = config.shm_method == "measure";
  const std::string path = tuning_path(config);
  const std::string mine = reads && !known->forced ? read_file(config, path) : "";
  const auto texts = ranks.all(std::as_bytes(std::span(mine)));
  const auto& bytes = texts[static_cast<std::size_t>(first)];
  if (!bytes.empty()) {
    const std::string read(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t line = read.find('\n');
    try {
      known->tables = tables_of_text(read.substr(line + 1), read.substr(0, line));
    } catch (const Error& error) {  // on all ranks of the node
      if (reads) refuse(config, path, error.what());
    }
  }
  if (config.banner && reads && !known->tables.empty()) {
    std::vector<int> ranks_known;
    for (const auto& [count, table] : known->tables) ranks_known.push_back(count);
    report(config, fmt::format("how large tensors travel within a node was measured before, for {} ranks ({})",
                               fmt::join(ranks_known, ", "), path));
  }
  return known;
}

}  // namespace kolo

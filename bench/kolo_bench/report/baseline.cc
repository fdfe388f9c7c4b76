#include "bench/kolo_bench/report/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/kolo_bench/options.h"

namespace kolo::bench {
namespace {

/// What two results must share to be comparable, as text that people can read.
std::string key_of(const Result& r) {
  return fmt::format("{} {}{} {}{}{}, {}{}", r.op, r.bytes,
                     r.buckets.empty() ? "" : fmt::format(" bytes of {}", r.buckets), to_string(r.dtype),
                     r.redop ? fmt::format(" {}", to_string(*r.redop)) : "",
                     r.root >= 0 ? fmt::format(" root {}", r.root) : "", r.mode, r.in_place ? ", in place" : "");
}

std::string key_of(const nlohmann::json& r) {
  const auto text_or = [&](const char* name) {
    return r.contains(name) && r.at(name).is_string() ? r.at(name).get<std::string>() : "";
  };
  const std::string buckets = text_or("buckets"), redop = text_or("redop");
  const bool rooted = r.contains("root") && r.at("root").is_number_integer();
  return fmt::format("{} {}{} {}{}{}, {}{}", r.at("op").get<std::string>(), r.at("bytes").get<std::int64_t>(),
                     buckets.empty() ? "" : fmt::format(" bytes of {}", buckets), r.at("dtype").get<std::string>(),
                     redop.empty() ? "" : " " + redop, rooted ? fmt::format(" root {}", r.at("root").get<int>()) : "",
                     r.at("mode").get<std::string>(), r.at("in_place").get<bool>() ? ", in place" : "");
}

}  // namespace

Baseline::Baseline(const std::string& path) : path_(path) {
  std::ifstream file(path);
  if (!file)
    throw UsageError(
        fmt::format("cannot read {} (it is missing or not readable); give --baseline a file that -J wrote", path));
  try {
    const auto json = nlohmann::json::parse(file);
    if (json.at("schema").get<int>() != 1)
      throw UsageError(
          fmt::format("{} has schema {}, and this program knows 1; measure it anew", path, json.at("schema").dump()));
    const auto& world = json.at("world");
    ranks_ = world.at("ranks").get<int>();
    way_ = world.at("path").get<std::string>();
    memory_ = world.at("memory").get<std::string>();
    for (const auto& result : json.at("results"))
      entries_.push_back({key_of(result), result.at("time_us").at("p50").get<double>()});
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("{} is not a result of this program ({}); give --baseline a file that -J wrote", path,
                                 error.what()));
  }
}

void Baseline::check_world(int ranks, const std::string& path, const std::string& memory) const {
  if (ranks != ranks_)
    throw UsageError(
        fmt::format("{} was measured with {} ranks, and this run has {}; run the same number", path_, ranks_, ranks));
  if (path != way_ || memory != memory_)
    throw UsageError(fmt::format(
        "{} was measured with {} memory, {}, and this run is with {} memory, {}; use the same --memory, --direct and "
        "--ordered",
        path_, memory_, way_, memory, path));
}

std::size_t Baseline::lacks(const std::vector<Result>& results) const {
  return static_cast<std::size_t>(std::ranges::count_if(results, [&](const Result& result) {
    return std::ranges::find(entries_, key_of(result), &Entry::key) == entries_.end();
  }));
}

std::vector<std::string> Baseline::slower(const std::vector<Result>& results, double tolerance) const {
  std::vector<std::string> lines;
  bool any = false;
  for (const Result& result : results) {
    const auto key = key_of(result);
    const auto before = std::ranges::find(entries_, key, &Entry::key);
    if (before == entries_.end()) continue;
    any = true;
    const double limit = before->p50_us * (1 + tolerance);
    if (result.time_us.p50 <= limit) continue;
    lines.push_back(fmt::format("{}: {:.2f} us, and {:.2f} us in the baseline ({:+.1f} %, {:g} % are tolerated)", key,
                                result.time_us.p50, before->p50_us, (result.time_us.p50 / before->p50_us - 1) * 100,
                                tolerance * 100));
  }
  if (!any && !results.empty())
    throw UsageError(
        fmt::format("{} has none of the results that were measured; measure the same operations and sizes", path_));
  return lines;
}

std::vector<std::string> below_busbw(const std::vector<Result>& results, double min_gbs) {
  std::vector<std::string> lines;
  for (const bool in_place : {false, true}) {
    const Result* best = nullptr;
    for (const Result& result : results) {
      if (result.in_place == in_place && result.busbw_gbs && (!best || *result.busbw_gbs > *best->busbw_gbs))
        best = &result;
    }
    if (!best || *best->busbw_gbs >= min_gbs) continue;
    lines.push_back(
        fmt::format("{}{}: the best bus bandwidth is {:.3g} GB/s at {} bytes, and --min-busbw asks for {:g}", best->op,
                    in_place ? ", in place" : "", *best->busbw_gbs, best->bytes, min_gbs));
  }
  return lines;
}

}  // namespace kolo::bench

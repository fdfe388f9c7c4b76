#include <fmt/format.h>
#include <fmt/printf.h>

#include <utility>

#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {
namespace {

constexpr const char* places = "%12s  %12s  %8s  %6s  %6s";
constexpr const char* figures = "  %7s  %6s  %6s  %6s";

/// At most `width` characters while that is possible, with two digits behind the point at most.
std::string number(double value, std::size_t width) {
  for (int digits = 2; digits > 0; --digits) {
    if (auto text = fmt::format("{:.{}f}", value, digits); text.size() <= width) return text;
  }
  return fmt::format("{:.0f}", value);
}

class NcclTable final : public Table {
 public:
  NcclTable(const Options& options, const std::vector<std::string>& peers) : options_(options), peers_(peers) {}

  std::string header(const WorldInfo& world) override {
    program_ = options_.collective->perf;
    const Sizes& sizes = options_.sizes;
    std::string text =
        fmt::format("# kolo-bench version {} path={} backend={} memory={} mpi={} mpi_threads={}\n", world.version,
                    world.path, world.backend, world.memory, world.mpi, world.mpi_threads);
    if (!world.peer_version.empty()) text += fmt::format("# compared with {}\n", world.peer_version);
    text += fmt::format("# Collective test starting: {}\n", program_);
    text += fmt::format(
        "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} validation: "
        "{} graph: "
        "0 unalign: 0\n",
        sizes.min, sizes.max, sizes.step > 0 ? sizes.step : sizes.factor, sizes.step > 0 ? "bytes" : "factor",
        options_.warm_up_for(sizes.max), options_.iterations_for(sizes.max), options_.lanes, options_.checks);
    text += "#\n# Using devices\n";
    for (int rank = 0; rank < world.ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      text += fmt::sprintf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", rank, 0, world.pids[at],
                           world.hosts[at], world.devices[at].index, world.devices[at].bus, world.devices[at].name);
    }
    if (!world.nccl.empty()) text += fmt::format("# NCCL {}, algorithm {}\n", world.nccl, world.nccl_algo);
    if (world.ranks == 1) text += "# One rank: bus bandwidth is undefined, since nothing crosses a bus; algbw holds\n";
    return text + column_names();
  }

  std::string row(const std::vector<Result>& placements) override {
    const Result* halves[2] = {nullptr, nullptr};
    for (const Result& result : placements) halves[result.in_place ? 1 : 0] = &result;
    const Result& any = placements.front();
    const std::string before = std::exchange(op_, any.op);
    std::string text = before.empty() || before == any.op ? "" : fmt::format("# {}\n", any.op);
    text +=
        fmt::sprintf(places, std::to_string(any.bytes), std::to_string(any.count), std::string(nccl_name(any.dtype)),
                     any.redop ? std::string(nccl_name(*any.redop)) : "none", std::to_string(any.root));
    for (const Result* half : halves) text += half ? half_of(*half) : fmt::sprintf(figures, "N/A", "N/A", "N/A", "N/A");
    for (const Result* half : halves) text += half ? extras_of(*half) : no_extras();
    return text + fmt::sprintf("  %*s\n", method_width, method_of(placements));
  }

  std::string footer(const Report& report) override {
    std::int64_t wrong = 0;
    for (const Result& result : report.results) wrong += result.wrong.value_or(0);
    return fmt::format(
        "# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:.6g}\n{}#\n# Collective test concluded: {}\n",
        wrong, wrong == 0 ? "OK" : "FAILED", average_busbw(report.results), peak_memory_line(report.world), program_);
  }

 private:
  std::string column_names() const {
    std::string title = fmt::sprintf("# %10s  %12s  %8s  %6s  %6s  %31s  %31s", "", "", "", "", "",
                                     "out-of-place       ", "in-place         ");
    std::string names = fmt::sprintf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
    std::string units = fmt::sprintf("# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
    for (int half = 0; half < 2; ++half) {
      names += fmt::sprintf(figures, "time", "algbw", "busbw", "#wrong");
      units += fmt::sprintf(figures, "(us)", "(GB/s)", "(GB/s)", "");
    }
    for (int half = 0; half < 2; ++half) {
      bool first = true;
      const auto column = [&](const std::string& name, const std::string& unit, int width) {
        title += fmt::sprintf("  %*s", width, first ? (half == 0 ? "out-of-place" : "in-place") : "");
        names += fmt::sprintf("  %*s", width, name);
        units += fmt::sprintf("  %*s", width, unit);
        first = false;
      };
      for (const std::string& peer : peers_) {
        column(peer, "(us)", peer_width);
        column("ratio", "", 6);
      }
      if (options_.copy_limit) column("copy", "(GB/s)", 12);
    }
    names += fmt::sprintf("  %*s", method_width, "method");
    return "#\n" + title + "\n" + names + "\n" + units + "\n";
  }

  static std::string half_of(const Result& result) {
    return fmt::sprintf(figures, number(result.time_us.p50, 7), number(result.algbw_gbs, 6),
                        number(result.busbw_gbs.value_or(0), 6),
                        result.wrong ? fmt::format("{:g}", static_cast<double>(*result.wrong)) : "N/A");
  }
  std::string extras_of(const Result& result) const {
    std::string text;
    for (const std::string& name : peers_) {
      const PeerResult* const peer = result.peer(name);
      text += fmt::sprintf("  %*s  %6s", peer_width, peer ? number(peer->time_us.p50, 7) : "N/A",
                           peer ? number(peer->ratio, 6) : "N/A");
    }
    if (options_.copy_limit)
      text += fmt::sprintf("  %12s", result.copy_limit_gbs ? number(*result.copy_limit_gbs, 6) : "N/A");
    return text;
  }
  std::string no_extras() const { return extras_of(Result{}); }

  /// That of both placements, or one after the other.
  static std::string method_of(const std::vector<Result>& placements) {
    std::string text;
    for (const Result& result : placements) {
      const std::string one = result.method.empty() ? "-" : result.method;
      if (text != one) text += (text.empty() ? "" : "/") + one;
    }
    return text;
  }

  static constexpr int peer_width = 14, method_width = 8;

  Options options_;
  std::vector<std::string> peers_;
  std::string program_, op_;  // op_: of the last row
};

}  // namespace

std::unique_ptr<Table> nccl_table(const Options& options, const std::vector<std::string>& peers) {
  return std::make_unique<NcclTable>(options, peers);
}

}  // namespace kolo::bench

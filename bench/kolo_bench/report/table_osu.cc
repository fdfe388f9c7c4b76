#include <fmt/format.h>
#include <fmt/printf.h>

#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {
namespace {

constexpr int first_width = 10, width = 20;

std::string cell(const std::string& text) {
  return fmt::sprintf("%*s", width, text);
}
std::string cell(double value) {
  return fmt::sprintf("%*.2f", width, value);
}

class OsuTable final : public Table {
 public:
  OsuTable(const Options& options, const std::vector<std::string>& peers) : options_(options), peers_(peers) {}

  std::string header(const WorldInfo& world) override {
    std::string text =
        fmt::format("# kolo-bench {} ({}, backend {}, mpi_threads {}), in the format of OSU micro-benchmarks: {}\n",
                    world.version, world.path, world.backend, world.mpi_threads, options_.collective->name);
    if (!world.peer_version.empty()) text += fmt::format("# compared with {}\n", world.peer_version);
    text += gpu_lines(world);
    text += fmt::sprintf("%-*s", first_width, "# Size");
    if (options_.task == Task::overlap) {
      text += cell("Overall(us)") + cell("Compute(us)") + cell("Pure Comm.(us)") + cell("Overlap(%)");
    } else if (options_.task == Task::beside) {
      text += cell("Alone(us)") + cell("Beside(us)") + cell("Kept(%)") + cell("Small P50(us)") + cell("Small P90(us)") +
              cell("Small P99(us)") + cell("Small ones");
    } else {
      text += cell("Avg Latency(us)") + cell("Min Latency(us)") + cell("Max Latency(us)") + cell("Iterations") +
              cell("P50 Tail Lat(us)") + cell("P95 Tail Lat(us)") + cell("P99 Tail Lat(us)");
    }
    if (options_.checks > 0) text += cell("Validation");
    for (const std::string& peer : peers_) {
      text += options_.task == Task::overlap ? cell(peer + " Overall(us)") + cell(peer + " Overlap(%)")
                                             : cell(peer + " P50(us)") + cell("Ratio");
    }
    return text + "\n";
  }

  std::string row(const std::vector<Result>& placements) override {
    const Result& result = placements.front();
    const auto& t = result.time_us;
    std::string text = fmt::sprintf("%-*d", first_width, result.bytes);
    if (result.overlap) {
      const Overlap& o = *result.overlap;
      text += cell(o.overall_us) + cell(o.compute_us) + cell(o.pure_comm_us) + cell(o.percent());
    } else if (result.beside) {
      const Beside& b = *result.beside;
      text += cell(b.alone_us) + cell(b.with_us) + cell(b.percent_kept()) + cell(b.us.p50) + cell(b.us.p90) +
              cell(b.us.p99) + cell(std::to_string(b.count));
    } else {
      text += cell(t.mean) + cell(t.min) + cell(t.max) + cell(std::to_string(result.iterations)) + cell(t.p50) +
              cell(t.p95) + cell(t.p99);
    }
    if (options_.checks > 0) text += cell(!result.wrong ? "N/A" : *result.wrong == 0 ? "Pass" : "Fail");
    for (const std::string& name : peers_) text += peer_cells(result, name);
    return text + "\n";
  }

  std::string footer(const Report& report) override { return peak_memory_line(report.world); }

 private:
  static std::string peer_cells(const Result& result, const std::string& name) {
    const PeerResult* const peer = result.peer(name);
    if (!peer) return cell("N/A") + cell("N/A");
    return peer->overlap ? cell(peer->overlap->overall_us) + cell(peer->overlap->percent())
                         : cell(peer->time_us.p50) + cell(peer->ratio);
  }

  Options options_;
  std::vector<std::string> peers_;
};

}  // namespace

std::unique_ptr<Table> osu_table(const Options& options, const std::vector<std::string>& peers) {
  return std::make_unique<OsuTable>(options, peers);
}

}  // namespace kolo::bench

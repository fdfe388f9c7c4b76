#include "bench/kolo_bench/report/table.h"

#include <fmt/format.h>

namespace kolo::bench {
namespace {

/// Only the JSON, at the end.
class JsonTable final : public Table {
 public:
  std::string header(const WorldInfo&) override { return {}; }
  std::string row(const std::vector<Result>&) override { return {}; }
  std::string footer(const Report& report) override { return to_json(report); }
};

/// One line per rank, at the end.
class IdleTable final : public Table {
 public:
  std::string header(const WorldInfo& world) override {
    hosts_ = world.hosts;
    return fmt::format("# idle sessions: share of a core, and MPI calls\n{:>6}  {:<24}  {:>8}  {:>9}\n", "# rank",
                       "host", "cpu (%)", "MPI calls");
  }
  std::string row(const std::vector<Result>&) override { return {}; }
  std::string footer(const Report& report) override {
    std::string text;
    for (const IdleRank& one : report.idle) {
      text += fmt::format("{:>6}  {:<24}  {:>8.3f}  {:>9}\n", one.rank, hosts_[static_cast<std::size_t>(one.rank)],
                          one.cpu_percent, one.mpi_calls);
    }
    return text;
  }

 private:
  std::vector<std::string> hosts_;
};

/// One line per list, at the end.
class PackTable final : public Table {
 public:
  std::string header(const WorldInfo& world) override {
    std::string text = "# pack and unpack kernels against a copy of as many bytes within the GPU\n";
    text += gpu_lines(world);
    return text + fmt::format(
                      "{:<16}  {:>7}  {:>12}  {:>8}  {:>8}  {:>7}  {:>8}  {:>7}  {:>6}\n{:<16}  {:>7}  {:>12}  {:>8}  "
                      "{:>8}  {:>7}  {:>8}  {:>7}\n",
                      "# list", "tensors", "size", "copy", "pack", "of copy", "unpack", "of copy", "#wrong", "#", "",
                      "(B)", "(GB/s)", "(GB/s)", "", "(GB/s)", "");
  }
  std::string row(const std::vector<Result>&) override { return {}; }
  std::string footer(const Report& report) override {
    std::string text;
    for (const PackResult& one : report.pack) {
      text += fmt::format("{:<16}  {:>7}  {:>12}  {:>8.2f}  {:>8.2f}  {:>6.1f}%  {:>8.2f}  {:>6.1f}%  {:>6}\n",
                          one.name, one.tensors, one.bytes, one.gbs(one.copy_us), one.gbs(one.pack_us),
                          100 * one.share(one.pack_us), one.gbs(one.unpack_us), 100 * one.share(one.unpack_us),
                          one.wrong ? std::to_string(*one.wrong) : "N/A");
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Table> make_table(const Options& options, const std::vector<std::string>& peers) {
  if (options.format == Format::json) return std::make_unique<JsonTable>();
  if (options.task == Task::idle) return std::make_unique<IdleTable>();
  if (options.task == Task::pack) return std::make_unique<PackTable>();
  if (options.format == Format::csv) return csv_table(options, peers);
  if (options.format == Format::osu || options.task == Task::overlap || options.task == Task::beside)
    return osu_table(options, peers);
  return nccl_table(options, peers);
}

std::string gpu_lines(const WorldInfo& world) {
  std::string text;
  if (world.device == "cpu") return text;
  for (std::size_t rank = 0; rank < world.devices.size(); ++rank) {
    const DeviceInfo& device = world.devices[rank];
    text += fmt::format("# Rank {} on {}: GPU {} [{}] {}\n", rank, world.hosts[rank], device.index, device.bus,
                        device.name);
  }
  return text;
}

std::string peak_memory_line(const WorldInfo& world) {
  if (world.device == "cpu") return "";
  std::string text = "# Peak GPU memory (MiB) :";
  for (const DeviceInfo& device : world.devices) text += fmt::format(" {}", device.peak_bytes >> 20);
  return text + "\n";
}

}  // namespace kolo::bench

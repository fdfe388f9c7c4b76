#include <fmt/format.h>

#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {
namespace {

template <class Value>
std::string or_empty(const std::optional<Value>& value) {
  return value ? fmt::format("{}", *value) : "";
}

class CsvTable final : public Table {
 public:
  CsvTable(const Options& options, const std::vector<std::string>& peers)
      : overlap_(options.task == Task::overlap), beside_(options.task == Task::beside), peers_(peers) {}

  std::string header(const WorldInfo& world) override {
    ranks_ = world.ranks;
    path_ = world.path;
    if (world.device != "cpu") gpu_ = fmt::format("{} [{}]", world.devices.front().name, world.devices.front().bus);
    std::string text =
        "op,bytes,count,dtype,redop,root,in_place,mode,ranks,path,iterations,p50_us,p95_us,p99_us,min_us,max_us,mean_"
        "us,algbw_"
        "gbs,busbw_gbs,"
        "wrong,slowest_rank,copy_limit_gbs";
    if (overlap_) text += ",overall_us,compute_us,pure_comm_us,overlap_percent";
    if (beside_) text += ",beside_us,kept_percent,small_bytes,small_p50_us,small_p90_us,small_p99_us";
    for (const std::string& peer : peers_) {
      text += fmt::format(",{0}_p50_us,{0}_ratio", peer);
      if (overlap_) text += fmt::format(",{}_overlap_percent", peer);
    }
    if (!gpu_.empty()) text += ",gpu";
    text += ",mean_of_total_us";
    for (const std::string& peer : peers_) text += fmt::format(",{}_mean_of_total_us", peer);
    return text + ",method\n";
  }

  std::string row(const std::vector<Result>& placements) override {
    std::string text;
    for (const Result& result : placements) text += line(result);
    return text;
  }

  std::string footer(const Report&) override { return {}; }

 private:
  std::string line(const Result& r) const {
    const auto& t = r.time_us;
    std::string text =
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", r.op, r.bytes, r.count,
                    to_string(r.dtype), r.redop ? to_string(*r.redop) : "", r.root >= 0 ? std::to_string(r.root) : "",
                    r.in_place, r.mode, ranks_, path_, r.iterations, t.p50, t.p95, t.p99, t.min, t.max, t.mean,
                    r.algbw_gbs, or_empty(r.busbw_gbs), or_empty(r.wrong), r.slowest_rank, or_empty(r.copy_limit_gbs));
    if (r.overlap)
      text += fmt::format(",{},{},{},{}", r.overlap->overall_us, r.overlap->compute_us, r.overlap->pure_comm_us,
                          r.overlap->percent());
    if (r.beside)
      text += fmt::format(",{},{},{},{},{},{}", r.beside->with_us, r.beside->percent_kept(), r.beside->bytes,
                          r.beside->us.p50, r.beside->us.p90, r.beside->us.p99);
    for (const std::string& name : peers_) {
      const PeerResult* const peer = r.peer(name);
      text += peer ? fmt::format(",{},{}", peer->time_us.p50, peer->ratio) : ",,";
      if (overlap_) text += peer && peer->overlap ? fmt::format(",{}", peer->overlap->percent()) : ",";
    }
    if (!gpu_.empty()) text += fmt::format(",\"{}\"", gpu_);
    text += fmt::format(",{}", r.mean_of_total_us);
    for (const std::string& name : peers_) {
      const PeerResult* const peer = r.peer(name);
      text += peer ? fmt::format(",{}", peer->mean_of_total_us) : ",";
    }
    return text + "," + r.method + "\n";
  }

  bool overlap_, beside_;
  std::vector<std::string> peers_;
  int ranks_ = 1;
  std::string path_;
  std::string gpu_;  // rank 0's; empty on hosts
};

}  // namespace

std::unique_ptr<Table> csv_table(const Options& options, const std::vector<std::string>& peers) {
  return std::make_unique<CsvTable>(options, peers);
}

}  // namespace kolo::bench

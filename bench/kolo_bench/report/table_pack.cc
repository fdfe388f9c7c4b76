#include <fmt/format.h>

#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {
namespace {

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

std::unique_ptr<Table> pack_table() {
  return std::make_unique<PackTable>();
}

}  // namespace kolo::bench

#include <fmt/format.h>

#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {

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

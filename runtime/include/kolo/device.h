#pragma once

#include <cstdint>
#include <string_view>

namespace kolo {

/// Where memory lives. The numeric values are part of the wire format: append only.
enum class DeviceKind : std::uint8_t { cpu, cuda };

constexpr std::string_view to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda";
  }
  return "unknown device";
}

/// One device of this process: its kind, and its index among those of its kind (a CUDA ordinal; 0 for the host).
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

}  // namespace kolo

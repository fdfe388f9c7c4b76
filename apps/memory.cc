#include "apps/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <new>
#include <string_view>

#include <kolo/error.h>
#include <kolo/memory.h>

namespace kolo {
namespace {

constexpr std::size_t reserved_bytes = std::size_t{16} << 20;
void* reserve = MAP_FAILED;
std::atomic<bool> reserve_used = false;

/// Called on any thread; allocates nothing.
void use_reserve() {
  if (reserve_used.exchange(true)) throw std::bad_alloc();
  ::munmap(reserve, reserved_bytes);
}

/// The memory of this process that RLIMIT_DATA counts: private and writable.
std::size_t data_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word && word != "VmData:") {
  }
  std::size_t kilobytes = 0;
  return file >> kilobytes ? kilobytes * 1024 : 0;
}

rlimit data_limit() {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  (void)::getrlimit(RLIMIT_DATA, &limit);
  return limit;
}

void limit_data(rlim_t bytes) {
  rlimit limit = data_limit();
  limit.rlim_cur = std::min(bytes, limit.rlim_cur);
  (void)::setrlimit(RLIMIT_DATA, &limit);
}

}  // namespace

std::string format_bytes(std::size_t bytes) {
  constexpr std::array<std::string_view, 5> units{"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < units.size(); ++unit) size /= 1024;
  return fmt::format("{:.{}f} {}", size, unit > 0 && size < 100 ? 1 : 0, units[unit]);
}

void limit_memory(int ranks) {
  const std::size_t part = available_memory() / static_cast<std::size_t>(ranks);
  limit_data(data_bytes() + part - part / 16);  // the rest is for code and stacks, which the limit does not count
}

void reserve_memory() {
  reserve = ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserve != MAP_FAILED) std::set_new_handler(use_reserve);
}

void check_reserve() {
  if (reserve_used) throw std::bad_alloc();
}

Memory shared_memory(Session& session, std::size_t bytes, Device device) {
  const rlim_t limit = device.kind == DeviceKind::cpu ? data_limit().rlim_cur : RLIM_INFINITY;
  if (limit != RLIM_INFINITY && data_bytes() + bytes > limit) throw std::bad_alloc();
  try {
    Memory memory = session.allocate(bytes, device);
    if (limit != RLIM_INFINITY && session.local_size() > 1) limit_data(limit - bytes);
    return memory;
  } catch (const Error&) {
    throw std::bad_alloc();
  }
}

SharedFloats::SharedFloats(Session& session, std::size_t count, Device device)
    : all_({.shape = {static_cast<std::int64_t>(count)}, .device = device}) {
  if (session.size() == 1 && device.kind == DeviceKind::cpu) {
    own_.resize(count);
    all_.data = own_.data();
    return;
  }
  memory_ = shared_memory(session, count * sizeof(float), device);
  all_.data = memory_.data();
}

std::size_t peak_memory() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace kolo

#include "bench/kolo_bench/measure/storage.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include <kolo/memory.h>

#include "bench/kolo_bench/options.h"

namespace kolo::bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr auto largest = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());

double in_gib(double bytes) {
  return bytes / (1 << 30);
}

/// Of the pages that lie wholly within; a system that has no such pages leaves them as they are.
void advise(std::byte* data, std::size_t bytes, bool huge) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

}  // namespace

Storage Storage::private_pages(std::size_t bytes, bool huge) {
  Storage storage;
  bytes = std::max<std::size_t>(bytes, 1);
  storage.mapped_ = bytes + huge_page;
  storage.mapping_ =
      ::mmap(nullptr, storage.mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (storage.mapping_ == MAP_FAILED) {
    storage.mapping_ = nullptr;
    throw std::bad_alloc();
  }
  const auto start = reinterpret_cast<std::uintptr_t>(storage.mapping_);
  storage.data_ = reinterpret_cast<std::byte*>((start + huge_page - 1) / huge_page * huge_page);
  advise(storage.data_, bytes, huge);
  std::memset(storage.data_, 0, bytes);
  return storage;
}

Storage Storage::on_gpu(Gpu& gpu, std::size_t bytes) {
  Storage storage;
  storage.on_gpu_ = GpuBuffer(gpu, std::max<std::size_t>(bytes, 1));
  storage.data_ = storage.on_gpu_.data();
  const GpuStream stream(gpu);
  gpu.clear(storage.data_, storage.on_gpu_.size(), stream.get());
  const auto cleared = gpu.mark(stream.get());
  while (!cleared->passed()) (void)::sched_yield();
  return storage;
}

Storage Storage::of_memory(Memory memory, bool huge) {
  Storage storage;
  storage.memory_ = std::move(memory);
  storage.data_ = storage.memory_.data();
  if (storage.memory_.device().kind != DeviceKind::cpu) return storage;
  if (huge) advise(storage.data_, storage.memory_.bytes(), true);
  std::memset(storage.data_, 0, storage.memory_.bytes());
  return storage;
}

Storage::Storage(Storage&& other) noexcept {
  *this = std::move(other);
}

Storage& Storage::operator=(Storage&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(memory_, other.memory_);
  std::swap(on_gpu_, other.on_gpu_);
  std::swap(data_, other.data_);
  return *this;
}

Storage::~Storage() {
  if (mapping_) ::munmap(mapping_, mapped_);
}

void check_memory(const Ranks& ranks, std::size_t bytes, const std::string& advice) {
  const auto capped = static_cast<std::int64_t>(std::min(bytes, largest / static_cast<std::size_t>(ranks.size())));
  const auto on_node = static_cast<double>(ranks.sum_on_node(capped));
  cli::collectively(ranks, [&] {
    const auto available = static_cast<double>(available_memory());
    if (on_node <= available) return;
    throw UsageError(fmt::format(
        "the tensors take {:.2f} GiB per rank and {:.2f} GiB on this machine, where {:.2f} GiB are free; {}",
        in_gib(static_cast<double>(bytes)), in_gib(on_node), in_gib(available), advice));
  });
}

std::size_t checked_sum(std::size_t a, std::size_t b) {
  if (a <= largest && b <= largest - a) return a + b;
  throw UsageError("the sizes add up to more bytes than can be addressed; use a smaller -e or -m");
}

std::size_t checked_product(std::size_t a, std::size_t b) {
  if (a == 0 || b <= largest / a) return a * b;
  throw UsageError("the sizes add up to more bytes than can be addressed; use a smaller -e or -m");
}

}  // namespace kolo::bench

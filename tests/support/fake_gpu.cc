#include "tests/support/fake_gpu.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include <kolo/error.h>

#include "tests/ops/kernels/element_types.h"

/// Of LeakSanitizer, where that is linked.
extern "C" __attribute__((weak)) void __lsan_ignore_object(const void*);

namespace kolo::testing {
namespace {

std::atomic<bool> pinned_may_stay{false};

class FakePoint final : public DevicePoint {
 public:
  explicit FakePoint(FakeGpu& gpu, bool timed = false) : gpu_(gpu), timed_(timed) {}
  void order(void* stream) const override {
    gpu_.check();
    if (gpu_.is_capturing(stream)) gpu_.spoil_captures();
    gpu_.put(stream, [come = come_] { return come->load(); });
  }
  bool passed() const override {
    gpu_.check();
    return *come_;
  }
  void come_here(void* stream) {
    gpu_.put(stream, [come = come_, when = when_] {
      *when = std::chrono::steady_clock::now();
      *come = true;
      return true;
    });
  }
  std::chrono::steady_clock::time_point when() const {
    if (!timed_ || !*come_) ADD_FAILURE() << "the time of a point that has none";
    return *when_;
  }

 private:
  FakeGpu& gpu_;
  bool timed_;
  std::shared_ptr<std::chrono::steady_clock::time_point> when_ =
      std::make_shared<std::chrono::steady_clock::time_point>();
  std::shared_ptr<std::atomic<bool>> come_ = std::make_shared<std::atomic<bool>>(false);
};

thread_local int current = 0;
constexpr int global_mode = 0, relaxed_mode = 2;  // of captures, as CUDA numbers them
thread_local int capture_mode = global_mode;

/// As the kernels do it: every thread of every tile.
void run_items(const std::vector<PackItem>& items, std::int64_t tiles, const Conversion& how) {
  const auto count = static_cast<std::int64_t>(items.size());
  const auto each = [&]<class To, class From>(auto convert) {
    for (std::int64_t tile = tiles - 1; tile >= 0; --tile) {
      for (int thread = 0; thread < threads_of_tile; ++thread)
        pack_tile<To, From>(items.data(), count, tile, tiles, thread, threads_of_tile, convert);
    }
  };
  if (how.is_copy()) return each.operator()<unsigned char, unsigned char>(Keep{});
  with_types(how, [&]<class To, class From>() {
    each.template operator()<To, From>([&](From value) { return converted<To, From>(value, how); });
  });
}

}  // namespace

int current_gpu() {
  return current;
}
bool disturbs_captures() {
  return capture_mode != relaxed_mode;
}

FakeGpu::FakeGpu(int index, std::uint64_t seed) : index_(index), random_(seed) {
  std::thread([this] { run(); }).detach();
}

void FakeGpu::put(void* stream, Work work) {
  {
    const std::lock_guard lock(mutex_);
    queues_[stream].work.push_back(std::move(work));
    ++queues_[stream].put;
  }
  news_.notify_all();
}

/// Streams of kolo's have a priority.
void FakeGpu::expect_loaded(void* stream) const {
  if (!kernels_loaded_ && priority_of(stream) != StreamPriority::normal)
    ADD_FAILURE() << "a kernel is loaded at its launch, which waits for what runs";
}

/// The first of a stream chosen at random, with a delay now and then.
void FakeGpu::run() {
  std::unique_lock lock(mutex_);
  std::size_t idle = 0;
  for (;;) {
    std::vector<void*> ready;
    for (auto& [stream, queue] : queues_) {
      if (!queue.work.empty()) ready.push_back(stream);
    }
    if (ready.empty() || idle > ready.size()) {
      news_.wait_for(lock, std::chrono::microseconds(ready.empty() ? 5000 : 20));
      idle = 0;
      if (ready.empty()) continue;
    }
    Queue& queue = queues_[ready[random_() % ready.size()]];
    const Work work = queue.work.front();
    const auto delay = random_() % 128 == 0 ? random_() % 60 : 0;
    queue.running = true;
    lock.unlock();
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    const bool done = work();
    lock.lock();
    queue.running = false;
    idle = done ? 0 : idle + 1;
    if (done) queue.work.pop_front();
    if (done) ++queue.done;
  }
}

bool FakeGpu::reaches(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(data);
  auto after = memory_.upper_bound(begin);
  if (after == memory_.begin()) return false;
  --after;
  return begin + bytes <= after->first + after->second;
}

void FakeGpu::expect_reach(const char* what, const void* data, std::size_t bytes) const {
  if (bytes > 0 && !reaches(data, bytes))
    ADD_FAILURE() << what << " of " << bytes << " bytes at " << data << ", which gpu " << index_ << " cannot reach";
}

void FakeGpu::check() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(ErrorCode::backend, failure_);
}

void FakeGpu::fail(std::string message) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(message);
}

void FakeGpu::note(std::string what) {
  const std::lock_guard lock(mutex_);
  log_.push_back(std::move(what));
}
std::vector<std::string> FakeGpu::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}
void FakeGpu::clear_log() {
  const std::lock_guard lock(mutex_);
  log_.clear();
}

GpuFacts FakeGpu::facts() const {
  return {"fake", fmt::format("0000:{:02x}:00.0", index_), 0, std::size_t{1} << 30};
}
GpuMemoryUse FakeGpu::memory_use() const {
  const std::lock_guard lock(mutex_);
  return {std::size_t{1} << 30, used_, peak_};
}

GpuSelection FakeGpu::select() {
  has_context_ = true;
  return {std::exchange(current, index_), std::exchange(capture_mode, relaxed_mode)};
}
void FakeGpu::select_again(const GpuSelection& before) noexcept {
  current = before.gpu;
  capture_mode = before.capture_mode;
}

void FakeGpu::begin_capture(void* stream) {
  const std::lock_guard lock(mutex_);
  capturing_.insert(stream);
  capture_spoiled_ = false;
}
bool FakeGpu::end_capture(void* stream) {
  const std::lock_guard lock(mutex_);
  capturing_.erase(stream);
  return !capture_spoiled_;
}
void FakeGpu::spoil_captures() {
  const std::lock_guard lock(mutex_);
  capture_spoiled_ = true;
}
bool FakeGpu::is_capturing(void* stream) {
  has_context_ = true;
  const std::lock_guard lock(mutex_);
  return capturing_.contains(stream);
}

void FakeGpu::load_kernels() {
  if (!kernels_loaded_.exchange(true)) note("load kernels");
}

void* FakeGpu::make_stream(StreamPriority priority) {
  check();
  has_context_ = true;
  const std::lock_guard lock(mutex_);
  void* const stream = reinterpret_cast<void*>(next_stream_ += 0x10);
  priorities_[stream] = priority;
  return stream;
}
StreamPriority FakeGpu::priority_of(void* stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = priorities_.find(stream);
  return found == priorities_.end() ? StreamPriority::normal : found->second;
}

/// As CUDA does it: what is on the stream still runs. Here the caller waits for it.
void FakeGpu::destroy_stream(void* stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find(stream);
  if (found != queues_.end() && found->second.work.empty() && !found->second.running) queues_.erase(found);
}

std::shared_ptr<const DevicePoint> FakeGpu::mark(void* stream, bool timed) {
  check();
  has_context_ = true;
  if (is_capturing(stream)) spoil_captures();
  auto point = std::make_shared<FakePoint>(*this, timed);
  point->come_here(stream);
  return point;
}

double FakeGpu::seconds_between(const DevicePoint& from, const DevicePoint& to) {
  const auto when = [](const DevicePoint& point) { return dynamic_cast<const FakePoint&>(point).when(); };
  return std::chrono::duration<double>(when(to) - when(from)).count();
}

void FakeGpu::copy(void* to, const void* from, std::size_t bytes, void* stream) {
  check();
  note("copy");
  expect_reach("a copy to memory", to, bytes);
  expect_reach("a copy from memory", from, bytes);
  put(stream, [=] {
    std::memcpy(to, from, bytes);
    return true;
  });
}

void FakeGpu::clear(void* data, std::size_t bytes, void* stream) {
  check();
  note("clear");
  expect_reach("zeros in memory", data, bytes);
  put(stream, [=] {
    std::memset(data, 0, bytes);
    return true;
  });
}

void FakeGpu::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check();
  expect_reach("a copy between memory of the host and", reaches(to, bytes) ? to : from, bytes);
  const GpuStream own(*this);
  put(own.get(), [=] {
    std::memcpy(to, from, bytes);
    return true;
  });
  synchronize(own.get());
}

void FakeGpu::clear(void* data, std::size_t bytes) {
  const GpuStream own(*this);
  clear(data, bytes, own.get());
  synchronize(own.get());
}

void FakeGpu::pack(const PackItem* items, std::size_t count, std::int64_t tiles, const Conversion& how, void* stream) {
  check();
  expect_loaded(stream);
  note(fmt::format("pack {}", count));
  std::vector<PackItem> passed;
  if (count <= most_items_passed)
    passed.assign(items, items + count);
  else
    expect_reach("a table", items, count * sizeof(PackItem));
  put(stream, [this, items, passed, count, tiles, how] {
    const std::vector<PackItem> read =
        passed.empty() ? std::vector<PackItem>(items, items + count) : passed;  // a table is read when the launch runs
    for (const PackItem& item : read) {
      expect_reach("an item from memory", item.from,
                   static_cast<std::size_t>(item.count) * static_cast<std::size_t>(size_in_items(how.from, how)));
      expect_reach("an item to memory", item.to,
                   static_cast<std::size_t>(item.count) * static_cast<std::size_t>(size_in_items(how.to, how)));
    }
    run_items(read, tiles, how);
    return true;
  });
}

void FakeGpu::combine(const Combination& what, void* stream) {
  check();
  expect_loaded(stream);
  note("combine");
  put(stream, [this, what] {
    expect_reach("a combination into memory", what.to, static_cast<std::size_t>(what.count) * size_of(what.dtype));
    expect_reach("a combination from memory", what.from,
                 static_cast<std::size_t>(what.stride * (what.ranks - 1)) +
                     static_cast<std::size_t>(what.count) * size_of(what.dtype));
    with_type(what.dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < what.count; ++i) combine_element<T>(what, i);
    });
    return true;
  });
}

void* FakeGpu::take(std::size_t bytes) {
  if (allocations_left_.fetch_sub(1) <= 0)
    throw Error(ErrorCode::backend, "cudaMalloc failed (out of memory) at fake_gpu.cc");
  has_context_ = true;
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256;
  void* const data = std::aligned_alloc(256, rounded);
  std::memset(data, 0xcd, rounded);
  const std::lock_guard lock(mutex_);
  memory_[static_cast<const std::byte*>(data)] = bytes;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return data;
}
/// As CUDA does before it frees memory: work that is on a stream already may use it.
bool FakeGpu::wait_for_all() noexcept {
  std::map<void*, std::uint64_t> until;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::unique_lock lock(mutex_);
  for (const auto& [stream, queue] : queues_) until[stream] = queue.put;
  const auto come = [&] {
    return std::ranges::all_of(until, [&](const auto& entry) {
      const auto found = queues_.find(entry.first);
      return found == queues_.end() || found->second.done >= entry.second;
    });
  };
  while (!come()) {
    lock.unlock();
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "memory is freed, and work that was put on a stream before never ends";
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
  }
  return true;
}
void FakeGpu::give_back(void* data) {
  (void)wait_for_all();
  forget(data);
}
/// Who uses it now finds no values there, or that this GPU has no such memory.
void FakeGpu::forget(void* data) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(static_cast<const std::byte*>(data));
    std::memset(data, 0xcd, found->second);
    used_ -= found->second;
    memory_.erase(found);
  }
  std::free(data);
}
void FakeGpu::free_what_was_left() {
  (void)wait_for_all();
  const std::lock_guard lock(mutex_);
  for (const auto& [data, bytes] : std::exchange(memory_, {})) {
    used_ -= bytes;
    std::free(const_cast<std::byte*>(data));
  }
}
void* FakeGpu::allocate(std::size_t bytes) {
  check();
  return take(bytes);
}
void FakeGpu::release(void* data) noexcept {
  give_back(data);
}
PinnedMayStay::PinnedMayStay() {
  pinned_may_stay = true;
}
PinnedMayStay::~PinnedMayStay() {
  pinned_may_stay = false;
}

void* FakeGpu::allocate_pinned(std::size_t bytes) {
  check();
  void* const data = take(bytes);
  if (__lsan_ignore_object && pinned_may_stay) __lsan_ignore_object(data);
  return data;
}
void FakeGpu::release_pinned(void* data) noexcept {
  give_back(data);
}
void* FakeGpu::allocate_scratch(std::size_t bytes) {
  return allocate(bytes);
}
void FakeGpu::release_scratch(void* data) noexcept {
  forget(data);
}

std::uint64_t FakeGpu::begin_range(const std::string& text) {
  ++open_ranges_;
  const std::lock_guard lock(mutex_);
  ranges_.push_back(text);
  return ranges_.size();
}
void FakeGpu::end_range(std::uint64_t /*range*/) noexcept {
  --open_ranges_;
}
std::vector<std::string> FakeGpu::ranges() const {
  const std::lock_guard lock(mutex_);
  return ranges_;
}

void FakeGpu::upload(void* to, const void* from, std::size_t bytes, void* stream) {
  expect_reach("an upload", to, bytes);
  std::vector<std::byte> values(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
  put(stream, [to, values] {
    if (!values.empty()) std::memcpy(to, values.data(), values.size());
    return true;
  });
}

void FakeGpu::download(void* to, const void* from, std::size_t bytes, void* stream) {
  expect_reach("a download", from, bytes);
  put(stream, [=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return true;
  });
  synchronize(stream);
}

void FakeGpu::synchronize(void* stream) {
  const auto point = std::make_shared<FakePoint>(*this);
  point->come_here(stream);
  while (!point->passed()) std::this_thread::yield();
}

namespace {
constexpr int most_gpus = 8;
std::atomic<int> gpus_seen{most_gpus};
}  // namespace

FakeGpu& fake_gpu(int index) {
  static const auto* const gpus = [] {  // never destroyed, as CUDA's: NCCL's helpers may outlive everything
    auto* const all = new std::array<FakeGpu*, most_gpus>();
    for (int i = 0; i < most_gpus; ++i)
      (*all)[static_cast<std::size_t>(i)] = new FakeGpu(i, static_cast<std::uint64_t>(i) + 1);
    return all;
  }();
  return *gpus->at(static_cast<std::size_t>(index));
}

void set_fake_gpus(int count) {
  gpus_seen = count;
}

}  // namespace kolo::testing

namespace kolo {

bool has_cuda() {
  return true;
}
int cuda_gpus() {
  return testing::gpus_seen;
}
Gpu& cuda_gpu(int index) {
  return testing::fake_gpu(index);
}

}  // namespace kolo

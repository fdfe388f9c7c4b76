#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/gpu/gpu.h"

namespace kolo::testing {

/// A GPU made of host memory and a thread. What is put on a stream runs later, in the stream's order, and streams run
/// in a random one with random delays: code that reads a result before its point, or marks a point too early, finds
/// stale values (and ThreadSanitizer finds a race). Complains, as failures of the test, about memory that a
/// real GPU could not reach. It lives as long as the process, as a real one does: its thread never ends.
class FakeGpu : public Gpu {
 public:
  FakeGpu(int index, std::uint64_t seed);

  /// Work on a stream: called again and again until it returns true.
  using Work = std::function<bool()>;
  void put(void* stream, Work work);

  /// Whether [data, data + bytes) lies in memory of this GPU, or in pinned memory of the host.
  bool reaches(const void* data, std::size_t bytes) const;

  /// Makes everything fail that is called from now on, as after an error of the device; empty: nothing.
  void fail(std::string message);
  /// Throws what fail() was given.
  void check();
  /// Makes the allocation fail that comes after `others` more.
  void fail_allocation_after(int others) { allocations_left_ = others; }

  /// As ncclMemFree does: without waiting for anything.
  void release_at_once(void* data) noexcept { forget(data); }

  /// A program captures a stream. Calls by other threads that do not allow for it spoil the capture; end_capture() says
  /// whether it is whole.
  void begin_capture(void* stream);
  bool end_capture(void* stream);
  void spoil_captures();

  /// Whether anything was called that makes a context, which takes hundreds of MiB, since forget_context().
  bool has_context() const { return has_context_; }
  void forget_context() { has_context_ = kernels_loaded_ = false; }

  /// Of all launches so far, in order: "pack 3", "combine", "copy", "clear".
  std::vector<std::string> log() const;
  void clear_log();

  /// Normal of a stream that was not made here.
  StreamPriority priority_of(void* stream) const;

  /// Frees memory that was leaked on purpose, when the GPU is idle for good.
  void free_what_was_left();

  /// What a program does with its tensors, each on a stream of its own.
  void upload(void* to, const void* from, std::size_t bytes, void* stream);
  /// Waits until the stream has come so far.
  void download(void* to, const void* from, std::size_t bytes, void* stream);
  void synchronize(void* stream);

  int index() const override { return index_; }
  GpuFacts facts() const override;
  GpuMemoryUse memory_use() const override;
  GpuSelection select() override;
  void select_again(const GpuSelection& before) noexcept override;
  bool is_capturing(void* stream) override;
  void load_kernels() override;
  void* make_stream(StreamPriority priority) override;
  void destroy_stream(void* stream) noexcept override;
  std::shared_ptr<const DevicePoint> mark(void* stream, bool timed = false) override;
  double seconds_between(const DevicePoint& from, const DevicePoint& to) override;
  void copy(void* to, const void* from, std::size_t bytes, void* stream) override;
  void clear(void* data, std::size_t bytes, void* stream) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void clear(void* data, std::size_t bytes) override;
  void pack(const PackItem* items, std::size_t count, std::int64_t tiles, const Conversion& how, void* stream) override;
  void combine(const Combination& what, void* stream) override;
  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* data) noexcept override;
  void* allocate_scratch(std::size_t bytes) override;
  void release_scratch(void* data) noexcept override;
  bool wait_for_all() noexcept override;
  std::uint64_t begin_range(const std::string& text) override;
  void end_range(std::uint64_t range) noexcept override;

  /// The texts of all ranges so far, and how many are open.
  std::vector<std::string> ranges() const;
  int open_ranges() const { return open_ranges_; }

 protected:
  ~FakeGpu() override = default;

 private:
  struct Queue {
    std::deque<Work> work;
    std::uint64_t put = 0, done = 0;
    bool running = false;
  };
  void expect_reach(const char* what, const void* data, std::size_t bytes) const;
  void* take(std::size_t bytes);
  void give_back(void* data);
  void forget(void* data);
  void note(std::string what);
  void expect_loaded(void* stream) const;
  void run();

  const int index_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::map<void*, Queue> queues_;
  std::map<const std::byte*, std::size_t> memory_;
  std::map<void*, StreamPriority> priorities_;
  std::size_t used_ = 0, peak_ = 0;
  std::uintptr_t next_stream_ = 0x1000;
  std::set<void*> capturing_;
  bool capture_spoiled_ = false;
  std::atomic<bool> has_context_{false}, kernels_loaded_{false};
  std::string failure_;
  std::atomic<int> allocations_left_{1 << 30};
  std::atomic<int> open_ranges_{0};
  std::vector<std::string> log_, ranges_;
  std::mt19937_64 random_;
};

/// The calling thread's current GPU, and whether its calls spoil the captures of others.
int current_gpu();
bool disturbs_captures();

/// The GPU that stands for number `index` of a program that links fake_gpu.cc.
FakeGpu& fake_gpu(int index);

/// How many GPUs such a program sees: 8 unless a test says otherwise.
void set_fake_gpus(int count);

/// While one lives, a rank that is lost may leave pinned memory behind: its GPU, or another rank, may still use that.
class PinnedMayStay {
 public:
  PinnedMayStay();
  ~PinnedMayStay();
};

}  // namespace kolo::testing

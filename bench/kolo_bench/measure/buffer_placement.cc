#include "bench/kolo_bench/measure/buffer_placement.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "bench/kolo_bench/options.h"
#include "ops/gpu/gpu.h"

namespace kolo::bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr auto largest = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());

double in_gib(double bytes) {
  return bytes / (1 << 30);
}

/// Requests huge pages, or none, for the pages inside the range; has no effect on systems without them.
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

namespace {

class HostPlacement final : public BufferPlacement {
 public:
  explicit HostPlacement(bool huge) : huge_(huge) {}

  Device device() const override { return {}; }
  void* stream() const override { return nullptr; }
  Storage storage(std::size_t bytes) const override { return Storage::private_pages(bytes, huge_); }
  void check_room(const Ranks& ranks, std::size_t bytes, const std::string& advice) const override {
    check_memory(ranks, bytes, advice);
  }
  void fill(const Checker& checker, const Work& work) const override { checker.fill(work); }
  std::int64_t wrong(const Checker& checker, const Work& work, std::optional<WrongElement>* first) const override {
    return checker.wrong(work, first);
  }

 private:
  bool huge_;
};

const std::byte* begin_of(const Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.data);
}

/// Host copies of the tensors of a Work on a GPU, in-place where the original is.
class Twin {
 public:
  explicit Twin(const Work& work) : work_(work) {
    for (BucketTensor& lane : work_.lanes) {
      const std::byte *in = begin_of(lane.in), *out = begin_of(lane.out);
      const std::byte *in_end = in + lane.in.bytes(), *out_end = out + lane.out.bytes();
      if (in < out_end && out < in_end) {
        std::byte* const here = take(std::min(in, out), std::max(in_end, out_end));
        place(lane.in, here + (in - std::min(in, out)));
        place(lane.out, here + (out - std::min(in, out)));
      } else {
        place(lane.in, take(in, in_end));
        place(lane.out, take(out, out_end));
      }
    }
  }

  const Work& work() const { return work_; }
  void upload(Gpu& gpu) const {
    for (const Copy& piece : copies_) gpu.copy(piece.there, piece.here.get(), piece.bytes);
  }
  void download(Gpu& gpu) const {
    for (const Copy& piece : copies_) gpu.copy(piece.here.get(), piece.there, piece.bytes);
  }

 private:
  struct Copy {
    std::byte* there;
    std::unique_ptr<std::byte[]> here;
    std::size_t bytes;
  };
  std::byte* take(const std::byte* begin, const std::byte* end) {
    const auto bytes = static_cast<std::size_t>(end - begin);
    copies_.push_back({const_cast<std::byte*>(begin), std::make_unique<std::byte[]>(bytes), bytes});
    return copies_.back().here.get();
  }
  static void place(Tensor& tensor, std::byte* data) {
    tensor.data = data;
    tensor.device = {};
  }

  Work work_;
  std::vector<Copy> copies_;
};

class GpuPlacement final : public BufferPlacement {
 public:
  GpuPlacement(Gpu& gpu, int sharing) : gpu_(gpu), sharing_(sharing), stream_(gpu) {}

  Device device() const override { return {DeviceKind::cuda, gpu_.index()}; }
  void* stream() const override { return stream_.get(); }
  Storage storage(std::size_t bytes) const override { return Storage::on_gpu(gpu_, bytes); }

  void check_room(const Ranks& ranks, std::size_t bytes, const std::string& advice) const override {
    check_memory(ranks, bytes, advice);  // values are made, and results checked, on the host
    cli::collectively(ranks, [&] {
      const GpuMemoryUse use = gpu_.memory_use();
      const double needed = static_cast<double>(bytes) * sharing_, free = static_cast<double>(use.total - use.used);
      if (needed <= free) return;
      throw UsageError(fmt::format("the tensors take {:.2f} GiB on GPU {}, where {:.2f} GiB are free; {}",
                                   in_gib(needed), gpu_.index(), in_gib(free), advice));
    });
  }

  void fill(const Checker& checker, const Work& work) const override {
    const Twin twin(work);
    checker.fill(twin.work());
    twin.upload(gpu_);
  }
  std::int64_t wrong(const Checker& checker, const Work& work, std::optional<WrongElement>* first) const override {
    const Twin twin(work);
    twin.download(gpu_);
    return checker.wrong(twin.work(), first);
  }

 private:
  Gpu& gpu_;
  int sharing_;
  GpuStream stream_;
};

}  // namespace

std::unique_ptr<BufferPlacement> host_placement(bool huge) {
  return std::make_unique<HostPlacement>(huge);
}

std::unique_ptr<BufferPlacement> gpu_placement(Gpu& gpu, int sharing) {
  return std::make_unique<GpuPlacement>(gpu, sharing);
}

Gpu& gpu_for(int local_rank) {
  if (!has_cuda())
    throw UsageError("--device cuda: this build has no CUDA; build kolo with KOLO_CUDA=ON, or leave it out");
  const int gpus = cuda_gpus();
  if (gpus == 0)
    throw UsageError("--device cuda: this machine has no GPU that CUDA can use; look at nvidia-smi, or leave it out");
  return cuda_gpu(local_rank % gpus);
}

}  // namespace kolo::bench

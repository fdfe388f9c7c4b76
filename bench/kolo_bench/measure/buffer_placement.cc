#include "bench/kolo_bench/measure/buffer_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/kolo_bench/options.h"
#include "ops/gpu/gpu.h"

namespace kolo::bench {
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

/// Copies on the host of the tensors of some work on a GPU, in-place where the original is.
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
                                   needed / (1 << 30), gpu_.index(), free / (1 << 30), advice));
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

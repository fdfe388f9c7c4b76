// A GPU for models in place of cuda_device.cu: a fake one of tests/support/fake_gpu.h, on whose default stream the
// kernels run on the host, later than they are launched.

#include <memory>
#include <thread>
#include <variant>

#include "models/compute/cuda/device.h"
#include "tests/models/cuda/host_device.h"
#include "tests/support/fake_gpu.h"

namespace kolo::testing {
namespace {

constexpr void* default_stream = nullptr;

struct Mark final : models::cuda::Point {
  explicit Mark(std::shared_ptr<const DevicePoint> of) : point(std::move(of)) {}
  void wait() override {
    while (!point->passed()) std::this_thread::yield();
  }
  std::shared_ptr<const DevicePoint> point;
};

class StreamedDevice final : public models::cuda::ComputeDevice {
 public:
  explicit StreamedDevice(FakeGpu& gpu) : gpu_(&gpu) {}
  ~StreamedDevice() override { gpu_->destroy_stream(beside_); }
  StreamedDevice(const StreamedDevice&) = delete;
  StreamedDevice& operator=(const StreamedDevice&) = delete;

  void* allocate(std::size_t bytes) override { return gpu_->allocate(bytes); }
  void release(void* memory) noexcept override { gpu_->release(memory); }
  void* allocate_pinned(std::size_t bytes) override { return gpu_->allocate_pinned(bytes); }
  void release_pinned(void* memory) noexcept override { gpu_->release_pinned(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (gpu_->reaches(to, bytes) && gpu_->reaches(from, bytes)) return gpu_->copy(to, from, bytes, default_stream);
    wait();
    gpu_->copy(to, from, bytes);
  }
  void wait() override { gpu_->synchronize(default_stream); }
  std::unique_ptr<models::cuda::Point> copy_beside(void* to, const void* pinned, std::size_t bytes,
                                                   models::cuda::Point& behind) override {
    hold_back(beside_, static_cast<Mark&>(behind));
    gpu_->copy(to, pinned, bytes, beside_);
    auto copied = std::make_unique<Mark>(gpu_->mark(beside_));
    hold_back(default_stream, *copied);
    return copied;
  }
  std::unique_ptr<models::cuda::Point> mark() override { return std::make_unique<Mark>(gpu_->mark(default_stream)); }
  void launch(const models::cuda::Kernel& kernel) override {
    gpu_->put(default_stream, [kernel] {
      std::visit([](const auto& one) { run_grid(one, false); }, kernel);
      return true;
    });
  }
  bool multiply(const models::cuda::PlainProduct&) override { return false; }
  models::cuda::AttentionLibrary* attention() override { return nullptr; }

 private:
  void hold_back(void* stream, const Mark& mark) {
    gpu_->put(stream, [point = mark.point] { return point->passed(); });
  }

  FakeGpu* gpu_;
  void* const beside_ = gpu_->make_stream(StreamPriority::normal);
};

}  // namespace
}  // namespace kolo::testing

namespace kolo::models::cuda {

bool has_attention_library() {
  return false;
}

std::unique_ptr<ComputeDevice> open_device(int index) {
  return std::make_unique<testing::StreamedDevice>(testing::fake_gpu(index));
}

}  // namespace kolo::models::cuda

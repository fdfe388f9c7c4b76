#include "tests/apps/torch/torch_gpu.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/fake_gpu.h"

namespace kolo::testing {
namespace {

constexpr int gpus = 8;

thread_local int current_index = 0;
thread_local std::array<void*, gpus> current_streams{};  // the default one is null

c10::Device cuda(int index) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}
c10::Stream stream_of(c10::Device device, void* native) {
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(native));
}
void* native(const c10::Stream& stream) {
  return reinterpret_cast<void*>(stream.id());
}
void*& current(c10::Device device) {
  return current_streams.at(static_cast<std::size_t>(device.index() < 0 ? current_index : device.index()));
}

/// Memory that is given out, and the streams that use it beside the one that it was allocated on.
struct Uses {
  std::mutex mutex;
  std::map<const void*, std::set<void*>> streams;
};
Uses& uses() {
  static auto* const all = new Uses();
  return *all;
}

using Point = std::shared_ptr<const DevicePoint>;

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return cuda(std::exchange(current_index, static_cast<int>(device.index())));
  }
  c10::Device getDevice() const override { return cuda(current_index); }
  void setDevice(c10::Device device) const override { current_index = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return gpus; }

  c10::Stream getStream(c10::Device device) const override { return stream_of(device, current(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return new_stream(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device(), std::exchange(current(stream.device()), native(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native(stream); }
  void synchronizeStream(const c10::Stream& stream) const override {
    fake_gpu(stream.device_index()).synchronize(native(stream));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    destroyEvent(*event, stream.device_index());
    *event = new Point(fake_gpu(stream.device_index()).mark(native(stream)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    (*static_cast<Point*>(event))->order(native(stream));
  }
  bool queryEvent(void* event) const override { return (*static_cast<Point*>(event))->passed(); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Point*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    const std::lock_guard lock(uses().mutex);
    uses().streams.at(data.get_context()).insert(native(stream));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard);

struct Piece {
  FakeGpu& gpu;
  std::size_t bytes;
  void* stream;  // that it was allocated on
  void* data;
};

void used_again(void* context) {
  const std::unique_ptr<Piece> piece(static_cast<Piece*>(context));
  std::set<void*> streams;
  {
    const std::lock_guard lock(uses().mutex);
    streams = uses().streams.extract(context).mapped();
  }
  for (void* const stream : streams) piece->gpu.mark(stream)->order(piece->stream);
  piece->gpu.put(piece->stream, [data = piece->data, bytes = piece->bytes] {
    std::memset(data, 0xAA, bytes);
    return true;
  });
}

at::Tensor make(at::IntArrayRef sizes, at::ScalarType type, int index) {
  FakeGpu& gpu = fake_gpu(index);
  std::size_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  auto* const piece = new Piece{gpu, bytes, current(cuda(index)), gpu.allocate(std::max<std::size_t>(bytes, 1))};
  {
    const std::lock_guard lock(uses().mutex);
    uses().streams[piece];
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::int64_t>(bytes),
                       c10::DataPtr(piece->data, piece, &used_again, cuda(index)), nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

// The host's view of a tensor's memory, for what runs on a stream.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat>) {
  return make(sizes, type.value_or(at::kFloat), device->index());
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  at::Tensor tensor = make(sizes, type.value_or(at::kFloat), device->index());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                   std::optional<std::int64_t> offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                             self.key_set(), self.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset.value_or(self.storage_offset()));
  return view;
}

/// Of contiguous tensors.
at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  std::vector<std::int64_t> all(sizes.begin(), sizes.end()), strides(all.size(), 1);
  std::int64_t known = 1;
  for (const std::int64_t size : all) known *= size < 0 ? 1 : size;
  for (std::int64_t& size : all) size = size < 0 ? self.numel() / known : size;
  for (std::size_t i = all.size(); i-- > 1;) strides[i - 1] = strides[i] * all[i];
  return strided(self, all, strides, self.storage_offset());
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool) {
  at::Tensor to = on_host(self);
  fake_gpu(self.device().index()).put(current(self.device()), [to, from = on_host(from)] {
    to.copy_(from);
    return true;
  });
  return self;
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", strided);
  library.impl("view", view);
  library.impl("copy_", copy_);
}

}  // namespace

c10::Stream default_stream(int gpu) {
  return stream_of(cuda(gpu), nullptr);
}

c10::Stream new_stream(int gpu) {
  return stream_of(cuda(gpu), fake_gpu(gpu).make_stream(StreamPriority::normal));
}

at::Tensor written_late(int gpu, const std::vector<float>& values, at::IntArrayRef sizes) {
  at::Tensor tensor = make(sizes, at::kFloat, gpu);
  void* const stream = current(tensor.device());
  const auto since = std::chrono::steady_clock::now();
  fake_gpu(gpu).put(stream,
                    [since] { return std::chrono::steady_clock::now() - since > std::chrono::milliseconds(2); });
  fake_gpu(gpu).upload(tensor.data_ptr(), values.data(), values.size() * sizeof(float), stream);
  return tensor;
}

std::vector<float> found(const at::Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  fake_gpu(tensor.device().index())
      .download(values.data(), tensor.data_ptr(), tensor.nbytes(), current(tensor.device()));
  return values;
}

Held::Held(const c10::Stream& stream) : go_(std::make_shared<std::atomic<bool>>(false)) {
  fake_gpu(stream.device_index()).put(native(stream), [go = go_] { return go->load(); });
}

}  // namespace kolo::testing

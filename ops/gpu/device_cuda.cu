#include <cuda_runtime.h>

#include "ops/gpu/cuda_errors.h"
#include "ops/gpu/device.h"

namespace kolo {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  void* allocate(std::size_t bytes, int index) const override {
    const SelectedDevice selected(index);
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
    return data;
  }
  void release(void* data) const noexcept override { (void)cudaFree(data); }
  void clear(void* data, std::size_t bytes) const override {
    cudaPointerAttributes place{};
    check_cuda(cudaPointerGetAttributes(&place, data), "cudaPointerGetAttributes");
    const SelectedDevice selected(place.device);  // the thread's stream must be of the same one
    check_cuda(cudaMemsetAsync(data, 0, bytes, cudaStreamPerThread), "cudaMemsetAsync");
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  }
  void copy(void* destination, const void* source, std::size_t bytes) const override {
    // Unified addressing tells host from device. A copy from device to device returns early: wait for it.
    check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, cudaStreamPerThread), "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  }
};

}  // namespace

const DeviceMemory* cuda_memory() {
  static const CudaMemory* const memory =
      new CudaMemory;  // never destroyed: a static session may release memory after all else
  return memory;
}

}  // namespace kolo

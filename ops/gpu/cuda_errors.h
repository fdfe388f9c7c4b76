#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <string>

#include <kolo/error.h>

namespace kolo {

/// Throws Error{backend} with CUDA's text, the call's name and the caller's file and line unless `rc` is cudaSuccess.
inline void check_cuda(cudaError_t rc, const char* call, Where where = Where::here()) {
  if (rc == cudaSuccess) return;
  (void)cudaGetLastError();  // else the next call that looks for errors finds this one
  const std::string file(where.file);
  throw Error(ErrorCode::backend, std::string(call) + " failed (" + cudaGetErrorString(rc) + ") at " +
                                      file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line));
}

/// Whether this process has a context on a device, or may have one.
inline bool has_context(int index) {
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const auto get_state = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // the runtime has loaded it
    return driver ? reinterpret_cast<GetState>(dlsym(driver, "cuDevicePrimaryCtxGetState")) : nullptr;
  }();
  unsigned flags = 0;
  int active = 1;
  return !get_state || get_state(index, &flags, &active) != 0 || active != 0;
}

/// Selects the device that was current before, unless this process has no context on it: selecting it would make one,
/// which takes hundreds of MiB, and every rank of a node would make one on device 0.
inline void select_device_again(int before) noexcept {
  if (has_context(before)) (void)cudaSetDevice(before);
}

/// Selects a device for the calls of this scope, and then the one that the thread had selected before.
class CudaDeviceGuard final {
 public:
  explicit CudaDeviceGuard(int index) : index_(index) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != index_) check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  }
  ~CudaDeviceGuard() {
    if (before_ != index_) select_device_again(before_);
  }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int index_;
  int before_ = 0;
};

}  // namespace kolo

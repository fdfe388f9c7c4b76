#pragma once

#include <cuda_runtime.h>

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

/// Selects a device for the calls of this scope, and then the one that the thread had selected before.
class SelectedDevice final {
 public:
  explicit SelectedDevice(int index) : index_(index) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != index_) check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  }
  ~SelectedDevice() {
    if (before_ != index_) (void)cudaSetDevice(before_);
  }
  SelectedDevice(const SelectedDevice&) = delete;
  SelectedDevice& operator=(const SelectedDevice&) = delete;

 private:
  int index_;
  int before_ = 0;
};

}  // namespace kolo

#pragma once

#include <omp.h>

#include <dnnl.hpp>

namespace kolo::models {

/// Limits the caller to one OpenMP thread during its lifetime: ranks share the cores, and sums must not depend on the
/// number of threads.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// oneDNN's engine for the CPU.
inline const dnnl::engine& onednn_cpu() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

}  // namespace kolo::models

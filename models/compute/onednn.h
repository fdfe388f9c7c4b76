#pragma once

#include <omp.h>

#include <dnnl.hpp>

namespace kolo::models {

/// One OpenMP thread for the caller while it lives: ranks share the cores, and sums must not depend on their number.
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

/// The processor as an engine of oneDNN.
inline const dnnl::engine& onednn_cpu() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

}  // namespace kolo::models

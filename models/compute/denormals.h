#pragma once

#include <kolo/detail/cpu.h>

namespace kolo::models {

/// While it lives, the calling thread takes denormal numbers (below 1.2e-38 in f32) for 0, as operands and as results:
/// some processors compute with them a hundred times as slowly. For operations of a Compute alone: whatever else runs
/// on the thread, sums of a session among them, has the mode that it had, and keeps its bits. On processors other than
/// x86 it does nothing.
class DenormalsAreZero {
 public:
#if defined(__x86_64__)
  DenormalsAreZero() : before_(__builtin_ia32_stmxcsr()) {
    set(before_ | flush_to_zero | denormals_are_zero);
  }
  ~DenormalsAreZero() {
    set(before_);
  }
#else
  DenormalsAreZero() {}
  ~DenormalsAreZero() {}
#endif
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;  // of the register MXCSR

  /// The compiler moves no access to memory across it.
  static void set(unsigned mode) {
    asm volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(mode);
    asm volatile("" ::: "memory");
  }

  unsigned before_;
#endif
};

}  // namespace kolo::models

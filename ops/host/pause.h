#pragma once

namespace kolo {

/// Tells the core that this thread spins: saves power and lets the other hardware thread run.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace kolo

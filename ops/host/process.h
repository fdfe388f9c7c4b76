#pragma once

// What this process may use, and whether it is the one that it was.

namespace kolo {

/// Whether `ranks` ranks on this node, placed like this process, outnumber the cores they may run on: then a thread
/// that spins keeps a peer from running. A process bound to one core is taken to have it for itself, as mpirun binds.
bool more_ranks_than_cores(int ranks);

/// Whether the threads of this process share one processor, as under a launcher that binds ranks to cores.
bool has_one_core();

/// Tells the core that this thread spins: saves power and lets the other hardware thread run.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// From now on a child that fork() makes of this process knows that it is one. Idempotent.
void notice_forks();

/// Whether this process is such a child: it has its parent's memory, but none of its threads, and must not act for it.
bool forked() noexcept;

/// Throws Error{closed} in such a child.
void refuse_forked();

}  // namespace kolo

#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ops/host/doorbell.h"
#include "ops/host/file_descriptor.h"

namespace kolo {

/// Notices the end of other processes of this host, by a thread that sleeps until there is one (pidfd_open(2)).
class ProcessWatch {
 public:
  /// `pids`: by rank. What cannot be watched is not, nor anything without a thread for it. `doorbell` is rung for each
  /// that ends, or has ended before; it must live as long as this.
  ProcessWatch(const std::map<int, int>& pids, Doorbell& doorbell);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// Whether take() has something to give. Any thread.
  bool any() const { return any_.load(std::memory_order_acquire); }
  /// A rank whose process has ended; each once. Any thread.
  std::optional<int> take();

 private:
  void wait();
  void ended(int rank);

  Doorbell& doorbell_;
  const FileDescriptor poll_, stop_;
  std::map<int, FileDescriptor> processes_;  // by rank
  std::mutex mutex_;
  std::vector<int> ended_;
  std::atomic<bool> any_{false};
  std::jthread thread_;  // last: it uses everything above
};

/// Which PID namespace this process is in: numbers of processes mean the same to those that are in the same one. 0: not
/// known.
std::uint64_t pid_namespace();

}  // namespace kolo

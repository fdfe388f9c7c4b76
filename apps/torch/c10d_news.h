#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include <kolo/error.h>

namespace kolo_torch {

/// What is told of the operations of one group. Thread-safe.
///
/// Of a completion torch's flight recorder is told, which is there unless the program switches it off: by who looks at
/// the operation, since a thread for that would cost more than most operations. Before it aborts a group a backend may
/// tell it, too; kolo does not, since it then writes files for seconds while an error waits to be thrown.
class C10dNews {
 public:
  /// Is told the completion key of a c10d::Work; must not block.
  using Hook = std::function<void(std::uint64_t key)>;

  void add(std::int64_t id, Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks_[id] = std::move(hook);
    any_ = true;
  }
  /// It may still run in another thread.
  void remove(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(id);
    any_ = !hooks_.empty();
  }
  bool has_listeners() const { return any_; }
  void completed(std::uint64_t key) const {
    std::vector<Hook> hooks;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, hook] : hooks_) hooks.push_back(hook);
    }
    for (const Hook& hook : hooks) hook(key);
  }

  std::uint64_t next_key() { return ++keys_ | std::uint64_t{'k'} << 56U; }  // others use addresses, or small numbers

  /// How an operation failed, or null.
  void look(const kolo::Failure* failure) {
    if (!failure || failure->code == kolo::ErrorCode::invalid_argument) return;
    auto none = c10d::ErrorType::SUCCESS;
    const bool late = failure->code == kolo::ErrorCode::stalled;
    error_.compare_exchange_strong(none, late ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR);
  }
  /// How the first one failed.
  c10d::ErrorType error() const { return error_; }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
  std::atomic<bool> any_{false};
  std::atomic<std::uint64_t> keys_{0};
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
};

}  // namespace kolo_torch

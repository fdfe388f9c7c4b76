#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <kolo/error.h>
#include <kolo/session.h>
#include <kolo/store.h>

#include "apps/torch/completions.h"
#include "apps/torch/tensor_pool.h"

namespace kolo_torch {

/// What the groups of one job share in this process: the session of all its ranks, threads, memory. Leaves for good,
/// without waiting for other ranks, when its last group has left, or when it dies; the session's threads and files go
/// then. Thread-safe.
struct Job {
  /// Collective; see kolo::store_world(). Where Open MPI's mpirun has started the same ranks, on several nodes, and all
  /// have Open MPI and libkolo_mpi, it carries what lies in host memory between them.
  Job(std::unique_ptr<kolo::Store> store, int rank, int size, const kolo::Config& config);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void enter();
  /// A group has left, once.
  void leave();
  /// Operations in flight fail, here and, where they need this rank, on other ranks. Idempotent.
  void abandon();
  bool abandoned() const;

  /// Throws kolo::Error{closed} once the job has been left.
  std::shared_ptr<kolo::Session> session() const;
  [[noreturn]] static std::shared_ptr<kolo::Session> closed();

  /// An operation has failed: whether a rank is gone is known from that on, if it says so.
  void failed(const kolo::Failure& failure) {
    if (failure.code == kolo::ErrorCode::aborted) has_lost_ = true;
  }
  /// Whether a rank of the job is gone: groups of those that are left need a job of their own.
  bool has_lost_a_rank() const;

  /// What kolo's options call `ready`: the stream that wrote the tensor; null for the host's. Throws c10::Error for a
  /// GPU's where the session has none.
  void* ready(const at::Tensor& tensor);
  /// That of the tensors that ready() was called with; none: all in host memory.
  std::optional<c10::Device> gpu() const {
    const int index = gpu_;
    return index < 0 ? std::nullopt : std::optional(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
  }

  /// Why what lies in host memory cannot travel between the ranks of a group of the session; empty: it can.
  std::string host_is_stuck(const kolo::Group& group) const {
    return group.info()->negotiated ? why_not_over_mpi_ : std::string();
  }

  const std::unique_ptr<kolo::Store> store;
  const std::shared_ptr<Completions> completions = std::make_shared<Completions>();
  TensorPool pool;

 private:
  std::string why_not_over_mpi_;  // empty: over MPI
  std::atomic<bool> has_lost_{false};
  std::atomic<int> gpu_{-1};
  mutable std::mutex mutex_;
  int groups_ = 0;
  std::shared_ptr<kolo::Session> session_;  // null: left
};

}  // namespace kolo_torch

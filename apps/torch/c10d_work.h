#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apps/torch/c10d_news.h"
#include "apps/torch/operation.h"

namespace kolo_torch {

/// The exception by which torch's programs learn of a failure.
std::exception_ptr exception_of(const kolo::Failure& failure);

/// An operation as c10d's programs see it. It goes on when they drop it.
class C10dWork final : public c10d::Work {
 public:
  struct About {
    std::shared_ptr<Operation> operation;
    std::shared_ptr<C10dNews> news;  ///< of its group
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::vector<at::Tensor> outputs{};
    std::uint64_t sequence = 0;
    std::chrono::milliseconds timeout{};
    std::shared_ptr<const int> source{};  ///< of a receive from any rank: gets its rank
    int rank = -1;
  };
  /// `title`: of the profiler's event; null: none. `inputs`: for it.
  C10dWork(About about, const char* title, const std::vector<at::Tensor>& inputs);
  ~C10dWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  /// The current stream waits for the results.
  void synchronize() override { wait(); }
  void blockCurrentStream() override { about_.operation->device() ? void(wait()) : Work::blockCurrentStream(); }
  /// Throws how it failed, or, when the time is over, that: then it goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return about_.sequence; }
  std::uint64_t getCompletionKey() const {  // overrides since torch 2.15
    return key_;
  }
  std::chrono::milliseconds getTimeout() const {  // overrides since torch 2.14
    return about_.timeout;
  }
  float getDuration() const override;

 private:
  struct Event;
  const About about_;
  const std::uint64_t key_;
  std::shared_ptr<Event> event_;  // null: nobody wants to be told
  std::mutex futures_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, future_result_;
};

}  // namespace kolo_torch

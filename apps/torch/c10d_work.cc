#include "apps/torch/c10d_work.h"

#include <stdexcept>
#include <utility>

namespace kolo_torch {

/// That an operation is done: the profiler and those who listen are told once.
struct C10dWork::Event {
  Event(const About& about, std::uint64_t its_key, std::function<void()> its_end)
      : operation(about.operation), news(about.news), key(its_key), end(std::move(its_end)) {}

  const std::shared_ptr<Operation> operation;
  const std::shared_ptr<C10dNews> news;
  const std::uint64_t key;
  const std::function<void()> end;  // of the profiler's event; empty: there is none
  std::atomic<bool> told{false};

  void tell() {
    if (told.exchange(true)) return;
    if (end) end();
    if (!operation->failure()) news->completed(key);
  }
};

namespace {

/// Nobody has given a new future a function yet: where the operation is done, it can be completed here.
void complete(Operation& operation, std::function<void()> future) {
  operation.done() ? future() : operation.then(std::move(future));
}

/// Streams wait for its value, as far as that is on GPUs. What has no value has no stream that could wait: it is
/// complete when the GPU is done.
void complete(c10::ivalue::Future& future, Operation& operation, const std::vector<at::Tensor>& value) {
  try {
    if (value.empty() && operation.device() && !operation.done()) synchronize(*operation.device());
    if (const kolo::Failure* const failure = operation.failure()) return future.setError(exception_of(*failure));
    future.markCompleted(c10::IValue(value));
  } catch (const std::exception&) {  // of the GPU
    future.setErrorIfNeeded(std::current_exception());
  }
}

}  // namespace

std::exception_ptr exception_of(const kolo::Failure& failure) {
  const char* const kind = failure.code == kolo::ErrorCode::stalled ? "kolo: a timeout has passed: " : "kolo: ";
  return std::make_exception_ptr(std::runtime_error(kind + failure.message));
}

C10dWork::C10dWork(About about, const char* title, const std::vector<at::Tensor>& inputs)
    : Work(about.rank, about.type, title, inputs), about_(std::move(about)), key_(about_.news->next_key()) {
  if (!recordFunctionEndCallback_ && !about_.news->has_listeners()) return;
  event_ = std::make_shared<Event>(about_, key_, std::move(recordFunctionEndCallback_));
  recordFunctionEndCallback_ = nullptr;
  if (event_->end) about_.operation->then([event = event_] { event->tell(); });
}

C10dWork::~C10dWork() {
  try {
    const auto tell = [event = event_] {
      if (event) event->tell();
    };
    about_.operation->is_under_way() || C10dWork::isCompleted() ? tell() : about_.operation->then(tell);
  } catch (const std::exception&) {  // in a child of fork(): nothing goes on
  }
}

bool C10dWork::isCompleted() {
  const bool done = about_.operation->done();
  if (done && event_) event_->tell();
  return done;
}

bool C10dWork::isSuccess() const {
  return about_.operation->done() && !about_.operation->failure();
}

std::exception_ptr C10dWork::exception() const {
  const kolo::Failure* const failure = about_.operation->failure();
  about_.news->look(failure);
  return failure ? exception_of(*failure) : nullptr;
}

int C10dWork::sourceRank() const {
  TORCH_CHECK(about_.source, "only a receive from any rank has a source");
  return *about_.source;
}

std::vector<at::Tensor> C10dWork::result() {
  return about_.outputs;
}

bool C10dWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = timeout > kNoTimeout ? std::chrono::steady_clock::now() + timeout : Operation::Deadline::max();
  if (!about_.operation->wait_until(deadline)) {
    throw std::runtime_error(c10::str("kolo: wait: timeout after ", timeout.count(),
                                      " ms: ", c10d::opTypeToString(opType_), " is not done, and goes on"));
  }
  if (event_) event_->tell();
  if (const auto failed = exception()) std::rethrow_exception(failed);
  return true;
}

void C10dWork::abort() {
  TORCH_CHECK(false, "kolo aborts process groups, not single operations; call abort() of the group");
}

c10::intrusive_ptr<c10::ivalue::Future> C10dWork::getFuture() {
  const std::lock_guard lock(futures_mutex_);
  if (future_) return future_;
  std::vector<c10::Device> devices;
  if (const auto& device = about_.operation->device()) devices.push_back(*device);
  const auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::move(devices));
  complete(*about_.operation, [future, operation = about_.operation, outputs = about_.outputs] {
    complete(*future, *operation, outputs);
  });
  future_ = future;
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> C10dWork::getFutureResult() {
  const std::lock_guard lock(futures_mutex_);
  if (future_result_) return future_result_;
  future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  complete(*about_.operation, [future = future_result_, operation = about_.operation] {
    auto result = c10d::WorkResult::SUCCESS;
    if (const kolo::Failure* const failure = operation->failure())
      result = failure->code == kolo::ErrorCode::stalled ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
    future->markCompleted(c10::IValue(static_cast<std::int64_t>(result)));
  });
  return future_result_;
}

float C10dWork::getDuration() const {
  TORCH_CHECK(false, "kolo does not time single operations; KOLO_TIMINGS=1 times all of a session");
}

}  // namespace kolo_torch

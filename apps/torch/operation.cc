#include "apps/torch/operation.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace kolo_torch {

/// A task that waits for an operation. The last handle that is done empties it: so nothing of the program's is
/// destroyed in the session's own thread.
struct Operation::Follower {
  std::atomic<std::size_t> missing;
  std::shared_ptr<Operation> operation;
  std::function<void()> task;

  void one_is_done() {
    if (missing.fetch_sub(1) > 1) return;
    const auto completions = operation->completions_;
    completions->post([operation = std::move(operation), task = std::move(task)] {
      operation->wait();
      task();
    });
  }
};

Operation::Operation(Parts parts) : completions_(parts.job->completions), parts_(std::move(parts)) {
  for (const at::Tensor& tensor : parts_.tensors) {
    if (!tensor.is_cpu()) device_ = tensor.device();
  }
}

Operation::Operation(const std::function<void()>& call, Parts parts) : Operation(std::move(parts)) {
  Lock lock(waiting_);
  try {
    call();
  } catch (const kolo::Error& error) {
    fail(error.failure());
  }
  settle(lock);
}

void Operation::fail(const kolo::Failure& failure) {
  if (!failure_) failure_ = failure;
  parts_.job->failed(failure);
}

bool Operation::done() {
  const auto has_results = [&] { return !on_stream_ || on_stream_->query(); };
  if (done_) return has_results();
  Lock lock(waiting_, std::try_to_lock);
  if (!lock || done_) return done_ && has_results();
  return std::ranges::all_of(parts_.handles, &kolo::Handle::poll) &&
         std::ranges::all_of(parts_.operations, &Operation::done) && wait_with(lock, Deadline::max());
}

bool Operation::wait_until(Deadline deadline) {
  if (done_) {
    order_stream();
    return true;
  }
  Lock lock(waiting_, std::defer_lock);
  if (deadline == Deadline::max()) {
    lock.lock();
  } else if (!lock.try_lock_until(deadline)) {
    return done_;
  }
  if (!done_) return wait_with(lock, deadline);
  order_stream();
  return true;
}

void Operation::order_stream() const {
  if (on_stream_) on_stream_->block(current_stream(*device_));
}

/// Waits for all handles, also where some have failed: the others still use the tensors.
bool Operation::wait_with(Lock& lock, Deadline deadline) {
  for (kolo::Handle& handle : parts_.handles) {
    try {
      if (deadline == Deadline::max()) {
        device_ ? handle.wait(native(current_stream(*device_))) : handle.wait();
      } else if (!handle.wait_until(deadline)) {
        return false;
      }
    } catch (const kolo::Error& error) {
      fail(error.failure());
    }
  }
  for (const auto& operation : parts_.operations) {
    if (!operation->wait_until(deadline)) return false;
    if (const kolo::Failure* const failure = operation->failure(); failure && !failure_) failure_ = *failure;
  }
  settle(lock);
  return true;
}

void Operation::settle(Lock& lock) {
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_python(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    if (!failure_ && parts_.finish) parts_.finish();
    for (const at::Tensor& tensor : parts_.tensors) {
      if (!tensor.is_cpu()) keep_until_here(tensor);
    }
    if (device_) on_stream_ = mark(*device_);
  } catch (const std::exception& error) {
    failure_ = kolo::Failure{kolo::ErrorCode::backend, error.what()};
  }
  const auto job = std::move(parts_.job);
  const auto tensors = std::exchange(parts_.tensors, {});
  const auto finish = std::exchange(parts_.finish, nullptr);
  done_ = true;
  lock.unlock();  // they die without it
}

void Operation::then(std::function<void()> task) {
  if (device_) {
    return completions_->post([operation = shared_from_this(), task = std::move(task)] {
      const SideStream elsewhere(*operation->device_);
      operation->wait();
      task();
    });
  }
  const auto follower = std::make_shared<Follower>(parts_.handles.size() + parts_.operations.size() + 1,
                                                   shared_from_this(), std::move(task));
  for (kolo::Handle& handle : parts_.handles) {
    try {
      handle.on_done([follower](const kolo::Error*) { follower->one_is_done(); });
    } catch (const kolo::Error&) {  // it is empty: done
      follower->one_is_done();
    }
  }
  for (const auto& operation : parts_.operations) operation->then([follower] { follower->one_is_done(); });
  follower->one_is_done();
}

}  // namespace kolo_torch

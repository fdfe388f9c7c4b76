#include "apps/torch/operation.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <exception>
#include <thread>
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
  for (const auto& operation : parts_.operations) {
    if (operation->device_) device_ = operation->device_;
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
  if (done_) return has_results();
  Lock lock(waiting_, std::try_to_lock);
  if (!lock || done_) return done_ && has_results();
  return std::ranges::all_of(parts_.handles, &kolo::Handle::poll) &&
         std::ranges::all_of(parts_.operations, &Operation::done) && wait_with(lock, Deadline::max()) && has_results();
}

bool Operation::wait_until(Deadline deadline) {
  if (done_) return arrive(deadline);
  Lock lock(waiting_, std::defer_lock);
  if (deadline == Deadline::max()) {
    lock.lock();
  } else if (!lock.try_lock_until(deadline)) {
    return done_ && arrive(deadline);
  }
  if (!done_ && !wait_with(lock, deadline)) return false;
  if (lock.owns_lock()) lock.unlock();
  return arrive(deadline);
}

/// Under way, it has its results for the current stream, and with a deadline for the calling thread, too.
bool Operation::arrive(Deadline deadline) const {
  if (!on_stream_) return true;
  on_stream_->block(current_stream(*device_));
  while (deadline != Deadline::max() && !on_stream_->query()) {
    if (Deadline::clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
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
      if (device_ && handle) throw;  // the stream cannot wait, and the operation goes on
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
  const auto run = [this](auto&& step) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_python(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    try {
      step();
    } catch (const std::exception& error) {
      if (!failure_) failure_ = kolo::Failure{kolo::ErrorCode::backend, error.what()};
    }
  };
  if (!failure_ && parts_.finish) run(parts_.finish);
  if (device_) {
    run([&] {
      for (const at::Tensor& tensor : parts_.tensors) {
        if (!tensor.is_cpu()) keep_until_here(tensor);
      }
      on_stream_ = mark(*device_);
    });
  }
  const auto job = std::move(parts_.job);
  const auto tensors = std::exchange(parts_.tensors, {});
  const auto finish = std::exchange(parts_.finish, nullptr);
  done_ = true;
  lock.unlock();  // they die without it
}

void Operation::give_up(const char* why) {
  const Lock lock(waiting_);
  if (done_) return;
  if (!failure_) failure_ = kolo::Failure{kolo::ErrorCode::backend, why};
  done_ = true;
}

void Operation::then(std::function<void()> task) {
  if (device_) {
    return completions_->post([operation = shared_from_this(), task = std::move(task)] {
      try {
        const SideStream elsewhere(*operation->device_);
        operation->wait();
        return task();
      } catch (const std::exception& error) {  // of the GPU
        operation->give_up(error.what());
      }
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

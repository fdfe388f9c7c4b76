#include <kolo/handle.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include <kolo/device_backend.h>
#include <kolo/error.h>

#include "ops/gpu/gpu.h"
#include "runtime/coordinator/driver.h"

namespace kolo {

Handle::Handle(std::shared_ptr<Driver> driver, std::shared_ptr<Submission> submission)
    : driver_(std::move(driver)), submission_(std::move(submission)) {}

Handle::Handle(Handle&& other) noexcept
    : driver_(std::move(other.driver_)), submission_(std::move(other.submission_)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    release();
    driver_ = std::move(other.driver_);
    submission_ = std::move(other.submission_);
  }
  return *this;
}

Handle::~Handle() {
  release();
}

void Handle::wait() {
  const Operation waited = operation();
  if (!waited.second) return;
  waited.first->wait(waited.second);
  finish(waited);
}

Handle::Operation Handle::operation() const {
  const std::lock_guard lock(mutex_);
  return {driver_, submission_};
}

/// It is done: the handle is empty from now on.
void Handle::finish(const Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    submission_.reset();
    driver_.reset();
  }
  operation.first->conclude(*operation.second);
}

bool Handle::wait_until(std::chrono::steady_clock::time_point deadline) {
  const Operation waited = operation();
  if (!waited.second) return true;
  const bool done = waited.first->wait_until(waited.second, deadline);
  if (done) finish(waited);
  return done;
}

void Handle::detach(std::shared_ptr<const void> keep_alive) {
  if (!submission_) return;
  driver_->detach(submission_, std::move(keep_alive));
  submission_.reset();
  driver_.reset();
}

void Handle::on_done(std::function<void(const Error*)> function) {
  const auto& [driver, submission] = operation();
  if (!submission) throw Error(ErrorCode::invalid_argument, "on_done() of an empty handle; call it before wait()");
  driver->on_done(submission, std::move(function));
}

Handle::operator bool() const {
  return operation().second != nullptr;
}

void Handle::wait(void* stream) {
  if (!submission_ || submission_->request.signature.device == DeviceKind::cpu) return wait();
  const auto& request = submission_->request;
  if (request.ready && cuda_gpu(request.tensors.front().in.device.index).is_capturing(stream)) {
    throw Error(ErrorCode::invalid_argument,
                "wait() was given a stream that is being captured into a CUDA graph, of which kolo's operations cannot "
                "be a part; wait before the capture begins or after it ends");
  }
  const bool under_way = driver_->wait_for_launch(submission_);
  const auto submission = std::exchange(submission_, nullptr);
  const auto driver = std::exchange(driver_, nullptr);
  if (!under_way && submission->completion.failure) throw Error(*submission->completion.failure);
  for (const auto& result : submission->completion.results) result->order(stream);
  if (const auto failure = driver->claim_failure()) throw Error(*failure);
}

bool Handle::poll() {
  const auto& [driver, submission] = operation();
  return !submission || driver->poll(submission);
}

void Handle::release() noexcept {
  if (submission_) driver_->release(submission_);
  submission_.reset();
  driver_.reset();
}

std::size_t wait_any(std::span<Handle> handles) {
  std::vector<Handle*> each;
  for (Handle& handle : handles) each.push_back(&handle);
  return wait_any(std::span<Handle* const>(each));
}

std::size_t wait_any(std::span<Handle* const> handles) {
  if (handles.empty()) throw Error(ErrorCode::invalid_argument, "wait_any() of no handles; pass one at least");
  const auto any = std::make_shared<Flag>();
  const auto listener = std::make_shared<const std::function<void()>>([any] { any->set(); });
  std::vector<Handle::Operation> listened;
  std::ranges::transform(handles, std::back_inserter(listened), &Handle::operation);
  const auto found = std::ranges::find_if_not(
      listened, [&](const auto& one) { return one.second && one.first->listen(one.second, listener); });
  const auto index = static_cast<std::size_t>(found - listened.begin());
  if (found == listened.end()) {
    const auto& driver = listened.front().first;
    const bool alone = std::ranges::all_of(listened, [&](const auto& one) { return one.first == driver; });
    alone ? driver->wait_for(*any) : any->wait();  // who drives one session sleeps on its doorbell
  }
  listened.resize(index);
  for (const auto& [driver, submission] : listened) driver->stop_listening(submission, listener);
  const auto done =
      std::ranges::find_if(listened, [](const auto& one) { return one.second->completion.done.is_set(); });
  return static_cast<std::size_t>(done - listened.begin());
}

void wait_all(std::span<Handle> handles) {
  std::optional<Error> first;
  for (Handle& handle : handles) {
    try {
      handle.wait();
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  if (first) throw Error(*first);
}

}  // namespace kolo

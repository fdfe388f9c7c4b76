#include <kolo/handle.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <kolo/device_backend.h>
#include <kolo/error.h>

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
  const auto& [driver, submission] = operation;
  if (submission->completion.failure) throw Error(*submission->completion.failure);
  if (const auto failure = driver->claim_failure()) throw Error(*failure);
}

bool Handle::wait_until(std::chrono::steady_clock::time_point deadline) {
  const Operation waited = operation();
  if (!waited.second) return true;
  if (!waited.first->wait_until(waited.second, deadline)) return false;
  finish(waited);
  return true;
}

void Handle::detach(std::shared_ptr<const void> keep_alive) {
  if (!submission_) return;
  driver_->detach(submission_, std::move(keep_alive));
  submission_.reset();
  driver_.reset();
}

void Handle::on_done(std::function<void(const Error*)> function) {
  if (!submission_) throw Error(ErrorCode::invalid_argument, "on_done() of an empty handle; call it before wait()");
  driver_->on_done(submission_, std::move(function));
}

void Handle::wait(void* stream) {
  if (!submission_ || submission_->request.signature.device == DeviceKind::cpu) return wait();
  const bool under_way = driver_->wait_for_launch(submission_);
  const auto submission = std::exchange(submission_, nullptr);
  const auto driver = std::exchange(driver_, nullptr);
  if (!under_way && submission->completion.failure) throw Error(*submission->completion.failure);
  for (const auto& result : submission->completion.results) result->order(stream);
  if (const auto failure = driver->claim_failure()) throw Error(*failure);
}

bool Handle::poll() {
  return !submission_ || driver_->poll(submission_);
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
  std::size_t listening = 0;
  while (listening < handles.size()) {
    const Handle& handle = *handles[listening];
    if (!handle.submission_ || !handle.driver_->listen(handle.submission_, listener)) break;
    ++listening;
  }
  if (listening == handles.size()) {
    const auto& driver = handles.front()->driver_;
    const bool alone = std::ranges::all_of(handles, [&](const Handle* handle) { return handle->driver_ == driver; });
    alone ? driver->wait_for(*any) : any->wait();  // who drives one session sleeps on its doorbell
  }
  for (std::size_t i = 0; i < listening; ++i) handles[i]->driver_->stop_listening(handles[i]->submission_, listener);
  for (std::size_t i = 0; i < listening; ++i) {
    if (handles[i]->submission_->completion.done) return i;
  }
  return listening;
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

#include <kolo/handle.h>

#include <utility>

#include <kolo/device_backend.h>
#include <kolo/error.h>

#include "runtime/coordinator/driver.h"

namespace kolo {

Handle::Handle(std::shared_ptr<Driver> driver, std::shared_ptr<Submission> submission)
    : driver_(std::move(driver)), submission_(std::move(submission)) {}

Handle::Handle(Handle&& other) noexcept = default;

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
  if (!submission_) return;
  const auto submission = std::exchange(submission_, nullptr);
  const auto driver = std::exchange(driver_, nullptr);
  driver->wait(submission);
  if (submission->completion.failure) throw Error(*submission->completion.failure);
  if (const auto failure = driver->claim_failure()) throw Error(*failure);
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

}  // namespace kolo

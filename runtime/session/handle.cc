#include <kolo/handle.h>

#include <utility>

#include <kolo/device_backend.h>
#include <kolo/error.h>

#include "runtime/coordinator/coordinator.h"

namespace kolo {

Handle::Handle(std::shared_ptr<Coordinator> coordinator, std::shared_ptr<Submission> submission)
    : coordinator_(std::move(coordinator)), submission_(std::move(submission)) {}

Handle::Handle(Handle&& other) noexcept = default;

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    release();
    coordinator_ = std::move(other.coordinator_);
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
  const auto coordinator = std::exchange(coordinator_, nullptr);
  coordinator->wait(submission);
  if (submission->failure) throw Error(*submission->failure);
  if (const auto failure = coordinator->claim_failure()) throw Error(*failure);
}

void Handle::wait(void* stream) {
  if (!submission_ || submission_->signature.device == DeviceKind::cpu) return wait();
  const bool under_way = coordinator_->wait_for_launch(submission_);
  const auto submission = std::exchange(submission_, nullptr);
  const auto coordinator = std::exchange(coordinator_, nullptr);
  if (!under_way && submission->failure) throw Error(*submission->failure);
  for (const auto& result : submission->results) result->order(stream);
  if (const auto failure = coordinator->claim_failure()) throw Error(*failure);
}

bool Handle::poll() {
  return !submission_ || coordinator_->poll(submission_);
}

void Handle::release() noexcept {
  if (submission_) coordinator_->release(submission_);
  submission_.reset();
  coordinator_.reset();
}

}  // namespace kolo

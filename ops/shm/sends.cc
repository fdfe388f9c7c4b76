#include "ops/shm/sends.h"

#include <bit>
#include <utility>

#include "ops/shm/chunk_layout.h"

namespace kolo {

ShmSends::ShmSends(std::shared_ptr<const Reach> reach, std::shared_ptr<const ShmKnown> known)
    : reach_(std::move(reach)), chooser_(ShmTuning{}.chunk, 2, std::move(known)) {}

std::optional<LaneAddress> ShmSends::begin(std::span<const std::byte> message) {
  const ShmReach reach = reach_->reach_of(message);
  if (reach == ShmReach::none || (reach == ShmReach::readable && message.size() < large)) return std::nullopt;
  if (message.size() < large) return reach_->address_of(message);
  const ShmClass of{OpKind::send_recv, static_cast<std::uint8_t>(std::bit_width(message.size())), 1};
  const auto answer = chooser_.answer(of, {{reach, false}, chooser_.last_trial(of)});
  if (answer.trial > 0 && trial_) chooser_.forget_trial(trial_->of);
  if (answer.trial > 0) trial_ = {message.data(), of, answer.trial, std::chrono::steady_clock::now()};
  return answer.choice.way == ShmWay::ring ? std::nullopt : std::optional(reach_->address_of(message));
}

void ShmSends::end(std::span<const std::byte> message) {
  if (!trial_ || trial_->message != message.data()) return;
  chooser_.complete(trial_->of, trial_->number, {trial_->begun, std::chrono::steady_clock::now()});
  trial_.reset();
}

void ShmSends::give_up(std::span<const std::byte> message) {
  if (!trial_ || trial_->message != message.data()) return;
  chooser_.forget_trial(trial_->of);
  trial_.reset();
}

}  // namespace kolo

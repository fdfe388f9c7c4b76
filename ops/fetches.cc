#include "ops/fetches.h"

#include <algorithm>

namespace kolo {

std::optional<Fetches::News> Fetches::copy_part(ByteLane& lane, std::size_t most) {
  Message message = messages_.front();
  const std::size_t now = std::min(most, message.to.size() - message.copied);
  const auto result = lane.fetch(message.address, message.copied, message.to.subspan(message.copied, now), heard_);
  if (result == ByteLane::Fetched::withdrawn) {
    waits_ = true;
    return std::nullopt;
  }
  messages_.pop_front();
  if (result == ByteLane::Fetched::impossible) return News{message.number, Event::impossible};
  const bool first = message.copied == 0;
  message.copied += now;
  if (message.copied == message.to.size()) return News{message.number, Event::complete};
  messages_.push_back(message);
  return News{message.number, first ? Event::begun : Event::none};
}

}  // namespace kolo

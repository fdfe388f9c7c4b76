#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include <kolo/backend.h>

namespace kolo {

/// Messages of one other rank that this rank copies itself, out of the memory in which they lie: a part of each in
/// turn.
///
/// The other one may withdraw a message at any time. It then counts that where the lane's fetch() looks, and says which
/// it is in its own time: until then nothing is copied. So each part that counts was copied while the message lay
/// there, and this rank need not hear of it in time.
class Fetches final {
 public:
  struct Message {
    std::uint64_t number = 0;
    LaneAddress address{};
    std::span<std::byte> to;  ///< not empty
    std::size_t copied = 0;
  };
  /// begun: the first part is there, more are to come. complete, or impossible (it must be sent): it is here no more.
  enum class Event : std::uint8_t { none, begun, complete, impossible };
  struct News {
    std::uint64_t number = 0;
    Event event = Event::none;
  };

  void add(const Message& message) { messages_.push_back(message); }
  /// Returns whether it was here.
  bool drop(std::uint64_t number) {
    return std::erase_if(messages_, [&](const Message& one) { return one.number == number; }) > 0;
  }
  /// The other rank has said what it has withdrawn: once more.
  void hear_withdrawal() {
    ++heard_;
    waits_ = false;
  }
  std::uint64_t heard() const { return heard_; }

  /// Whether copy_part() has something to do: it does not wait for word of a withdrawal.
  bool has_work() const { return !messages_.empty() && !waits_; }
  /// Copies a part of the message whose turn it is. Nothing if it has to wait; see has_work().
  std::optional<News> copy_part(ByteLane& lane, std::size_t most);

 private:
  std::deque<Message> messages_;
  std::uint64_t heard_ = 0;
  bool waits_ = false;
};

}  // namespace kolo

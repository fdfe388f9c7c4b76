#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/parcel.h"

namespace kolo {

/// What a mailbox is to write to one lane: frames, and the bytes of messages that were asked for, a part of each in
/// turn. Frames go before parts, but for the rest of a part that was begun. A part is preceded by a frame, and goes in
/// bulk if the lane wants that. An empty part is the end: without it, what came last may be what fills up a part.
class Outgoing final {
 public:
  void put(const Frame& frame, std::span<const std::byte> payload);
  void send(Parcel& parcel) { moving_.push_back(&parcel); }
  /// Its memory is not read any more: what is left of a part is filled up.
  void withdraw(Parcel& parcel);

  bool empty() const { return frames_.empty() && moving_.empty() && head_left_ + padding_ == 0; }
  /// What there is room for, about `most` bytes; `sent` is called with each message that is. Returns whether there was
  /// any.
  bool write(ByteLane& lane, std::size_t most, const std::function<void(Parcel&)>& sent);

 private:
  std::size_t write_frames(ByteLane& lane);
  std::size_t write_padding(ByteLane& lane);
  std::size_t write_part(ByteLane& lane, const std::function<void(Parcel&)>& sent);
  void begin_part(ByteLane& lane);

  std::vector<std::byte> frames_;  // not written yet, from `written_` on
  std::size_t written_ = 0;
  std::deque<Parcel*> moving_;  // the first is next
  Frame part_head_;             // of the part that was begun
  std::size_t head_left_ = 0, part_left_ = 0;
  std::size_t padding_ = 0;  // of a part whose send was withdrawn
};

}  // namespace kolo

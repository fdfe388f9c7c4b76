#include "ops/outgoing.h"

#include <algorithm>
#include <array>
#include <utility>

namespace kolo {
namespace {

constexpr std::size_t part = 32 << 10, bulk_part = 1 << 20;

}  // namespace

void Outgoing::put(const Frame& frame, std::span<const std::byte> payload) {
  const auto head = std::as_bytes(std::span(&frame, 1));
  frames_.insert(frames_.end(), head.begin(), head.end());
  frames_.insert(frames_.end(), payload.begin(), payload.end());
}

void Outgoing::withdraw(Parcel& parcel) {
  if (part_left_ > 0 && moving_.front() == &parcel) padding_ = std::exchange(part_left_, 0);
  std::erase(moving_, &parcel);
}

bool Outgoing::write(ByteLane& lane, std::size_t most, const std::function<void(Parcel&)>& sent) {
  bool moved = false;
  for (std::size_t sum = 0; sum < most && !empty();) {
    std::size_t count = 0;
    if (head_left_ > 0) {
      count = lane.write(std::as_bytes(std::span(&part_head_, 1)).last(head_left_));
      head_left_ -= count;
    } else if (padding_ > 0) {
      count = write_padding(lane);
    } else if (part_left_ > 0) {
      count = write_part(lane, sent);
    } else if (!frames_.empty()) {
      count = write_frames(lane);
    } else {
      begin_part(lane);
      continue;
    }
    if (count == 0) return moved;
    moved = true;
    sum += count;
  }
  return moved;
}

std::size_t Outgoing::write_frames(ByteLane& lane) {
  const std::size_t count = lane.write(std::span<const std::byte>(frames_).subspan(written_));
  written_ += count;
  if (written_ == frames_.size()) {
    frames_.clear();
    written_ = 0;
  }
  return count;
}

void Outgoing::begin_part(ByteLane& lane) {
  const Parcel& parcel = *moving_.front();
  const bool in_bulk = lane.has_bulk(parcel.bytes);
  part_left_ = std::min(in_bulk ? bulk_part : part, parcel.bytes - parcel.moved);
  part_head_ = {.kind = Frame::Kind::data,
                .how = in_bulk ? Frame::How::bulk : Frame::How::asked,
                .number = parcel.number,
                .bytes = part_left_};
  head_left_ = sizeof(Frame);
}

std::size_t Outgoing::write_part(ByteLane& lane, const std::function<void(Parcel&)>& sent) {
  Parcel& parcel = *moving_.front();
  const std::byte* const data = parcel.data + parcel.moved;
  const bool in_bulk = part_head_.how == Frame::How::bulk;
  const std::size_t count = in_bulk ? lane.write_bulk(data, part_left_) : lane.write({data, part_left_});
  parcel.moved += count;
  part_left_ -= count;
  if (part_left_ > 0) return count;
  moving_.pop_front();  // another one's turn
  if (parcel.moved < parcel.bytes) {
    moving_.push_back(&parcel);
    return count;
  }
  put({.kind = Frame::Kind::data, .number = parcel.number}, {});
  sent(parcel);
  return count;
}

std::size_t Outgoing::write_padding(ByteLane& lane) {
  static constexpr std::array<std::byte, 4096> zeros{};
  const bool in_bulk = part_head_.how == Frame::How::bulk;
  const std::size_t count = in_bulk ? lane.write_bulk(nullptr, padding_)
                                    : lane.write(std::span(zeros).first(std::min(zeros.size(), padding_)));
  padding_ -= count;
  return count;
}

}  // namespace kolo

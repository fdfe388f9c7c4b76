#include "runtime/control/node_links.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/control/wire.h"

namespace kolo {
namespace {

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::size_t NodeLinks::ring_bytes(int ranks) {
  return ranks <= 16 ? 8192 : ranks <= 64 ? 2048 : 512;
}

std::size_t NodeLinks::doorbell_words(int ranks) {
  return round_up(static_cast<std::size_t>(ranks + 63) / 64, align / 8);
}

std::size_t NodeLinks::bytes(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return n * sizeof(Doorbell) + n * doorbell_words(ranks) * 8 + n * n * (sizeof(Ring) + ring_bytes(ranks));
}

NodeLinks::NodeLinks(std::shared_ptr<Region> region, std::size_t offset, int index, int ranks)
    : region_(std::move(region)),
      index_(index),
      ranks_(ranks),
      doorbells_(region_->at<Doorbell>(offset)),
      senders_(region_->data() + offset + static_cast<std::size_t>(ranks) * sizeof(Doorbell)),
      rings_(senders_ + static_cast<std::size_t>(ranks) * doorbell_words(ranks) * 8),
      outgoing_(static_cast<std::size_t>(ranks)),
      gone_(static_cast<std::size_t>(ranks)),
      incoming_(static_cast<std::size_t>(ranks)) {}

NodeLinks::~NodeLinks() {
  for (int to = 0; to < ranks_; ++to) {
    if (to == index_) continue;
    ring(index_, to).closed.store(1, std::memory_order_release);
    ring_doorbell(to);
  }
}

NodeLinks::Ring& NodeLinks::ring(int from, int to) {
  const auto number = static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(to);
  return *reinterpret_cast<Ring*>(rings_ + number * (sizeof(Ring) + ring_bytes(ranks_)));
}

std::atomic<std::uint64_t>* NodeLinks::senders(int index) {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(senders_ +
                                                       static_cast<std::size_t>(index) * doorbell_words(ranks_) * 8);
}

/// Sets this sender's bit and wakes the receiver: the ringer's half of the protocol in doorbell.h.
void NodeLinks::ring_doorbell(int to) {
  senders(to)[index_ / 64].fetch_or(std::uint64_t{1} << (index_ % 64), std::memory_order_seq_cst);
  doorbells_[to].ring();
}

void NodeLinks::send(int to, std::span<const std::byte> message) {
  if (gone_[static_cast<std::size_t>(to)]) return;
  append_framed(outgoing_[static_cast<std::size_t>(to)], message);
  push(to);
}

void NodeLinks::drop(int index) {
  gone_[static_cast<std::size_t>(index)] = true;
  outgoing_[static_cast<std::size_t>(index)].clear();
}

bool NodeLinks::push(int to) {
  auto& queue = outgoing_[static_cast<std::size_t>(to)];
  if (queue.empty()) return true;
  Ring& link = ring(index_, to);
  auto* bytes = reinterpret_cast<std::byte*>(&link + 1);
  const std::size_t capacity = ring_bytes(ranks_);
  bool moved = false;
  for (int attempt = 0; attempt < 2 && !queue.empty(); ++attempt) {
    const auto written = link.written.bytes.load(std::memory_order_relaxed);
    const auto free = capacity - (written - link.read.bytes.load(std::memory_order_seq_cst));
    const auto count = std::min<std::size_t>(free, queue.size());
    const auto from = queue.begin();
    const auto end = from + static_cast<std::ptrdiff_t>(count);
    const std::size_t start = written % capacity;
    const auto wrap = from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(count, capacity - start));
    std::copy(from, wrap, bytes + start);
    std::copy(wrap, end, bytes);
    queue.erase(from, end);
    if (count > 0) link.written.bytes.store(written + count, std::memory_order_release);
    moved |= count > 0;
    if (!queue.empty())
      link.starved.store(1, std::memory_order_seq_cst);  // then look once more: the reader may have missed it
  }
  if (moved) ring_doorbell(to);
  return queue.empty();
}

bool NodeLinks::flush() {
  bool all = true;
  for (int to = 0; to < ranks_; ++to) all &= push(to);
  return all;
}

bool NodeLinks::pending() const {
  if (!messages_.empty()) return true;
  const auto* words = const_cast<NodeLinks*>(this)->senders(index_);
  for (int word = 0; word < (ranks_ + 63) / 64; ++word) {
    if (words[word].load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

bool NodeLinks::receive(ControlChannel::Message& message) {
  if (messages_.empty()) {
    auto* words = senders(index_);
    for (int word = 0; word < (ranks_ + 63) / 64; ++word) {
      if (words[word].load(std::memory_order_seq_cst) == 0) continue;  // the look after arming the doorbell
      auto bits = words[word].exchange(0, std::memory_order_seq_cst);
      try {
        for (; bits != 0; bits &= bits - 1) {
          const int from = word * 64 + std::countr_zero(bits);
          if (from >= ranks_) throw Error(ErrorCode::backend, "malformed control message (of no rank)");
          drain(from);
          push(from);  // it may have rung because it made room
        }
      } catch (...) {
        words[word].fetch_or(bits, std::memory_order_seq_cst);  // they have not been heard
        throw;
      }
    }
  }
  if (messages_.empty()) return false;
  message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

void NodeLinks::drain(int from) {
  Ring& link = ring(from, index_);
  const auto* bytes = reinterpret_cast<const std::byte*>(&link + 1);
  const std::size_t capacity = ring_bytes(ranks_);
  auto& buffer = incoming_[static_cast<std::size_t>(from)];
  for (;;) {
    const auto read = link.read.bytes.load(std::memory_order_relaxed);
    const auto count = static_cast<std::size_t>(link.written.bytes.load(std::memory_order_acquire) - read);
    if (count == 0) break;
    if (count > capacity) throw Error(ErrorCode::backend, "malformed control message (more than its ring holds)");
    const std::size_t start = read % capacity;
    const std::size_t first = std::min(count, capacity - start);
    make_room(buffer, count);  // for both parts, or none
    buffer.insert(buffer.end(), bytes + start, bytes + start + first);
    buffer.insert(buffer.end(), bytes, bytes + (count - first));
    link.read.bytes.store(read + count, std::memory_order_seq_cst);
    if (link.starved.load(std::memory_order_seq_cst) != 0 && link.starved.exchange(0, std::memory_order_seq_cst) != 0) {
      ring_doorbell(from);
    }
  }
  (void)take_framed(buffer, std::numeric_limits<std::uint32_t>::max(), [&](std::span<const std::byte> bytes) {
    messages_.push_back({from, {bytes.begin(), bytes.end()}});
  });
}

}  // namespace kolo

#include "models/compute/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "models/util/error.h"

namespace kolo::models::cuda {
namespace {

constexpr std::size_t piece = std::size_t{1} << 20, least_bytes = 4096;
constexpr std::ptrdiff_t most_idle = 4;  // of one size, before one of them is waited for

}  // namespace

struct Staging::Download final : Reading {
  Download(Staging& staging, Pinned taken) : of(&staging), pinned(std::move(taken)) {}
  ~Download() override { of->idle_.push_back(std::move(pinned)); }
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  const void* wait() override {
    pinned.used->wait();
    return pinned.memory;
  }

  Staging* of;
  Pinned pinned;
};

Staging::~Staging() {
  for (const Pinned& pinned : idle_) {
    if (pinned.used) pinned.used->wait();
    device_->release_pinned(pinned.memory);
  }
}

/// Memory that nothing uses.
Staging::Pinned Staging::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, least_bytes));
  const auto fits = [&](const Pinned& pinned) { return pinned.bytes == size; };
  const auto found = std::ranges::find_if(idle_, fits);
  if (found == idle_.end() || std::ranges::count_if(idle_, fits) < most_idle) {
    if (void* const memory = device_->allocate_pinned(size)) return {memory, size, nullptr};
    if (found == idle_.end()) throw ModelError("there is no pinned memory of the host for copies to and from the GPU");
  }
  Pinned pinned = std::move(*found);
  idle_.erase(found);
  if (pinned.used) pinned.used->wait();
  return pinned;
}

void Staging::upload(void* to, const void* from, std::size_t bytes, Point* behind) {
  for (std::size_t first = 0; first < bytes; first += piece) {
    const std::size_t count = std::min(piece, bytes - first);
    Pinned pinned = take(count);
    std::memcpy(pinned.memory, static_cast<const std::byte*>(from) + first, count);
    void* const part = static_cast<std::byte*>(to) + first;
    if (behind != nullptr) {
      pinned.used = device_->copy_beside(part, pinned.memory, count, *behind);
    } else {
      device_->copy(part, pinned.memory, count);
      pinned.used = device_->mark();
    }
    idle_.push_back(std::move(pinned));
  }
}

std::unique_ptr<Reading> Staging::download(const void* from, std::size_t bytes) {
  Pinned pinned = take(bytes);
  device_->copy(pinned.memory, from, bytes);
  pinned.used = device_->mark();
  return std::make_unique<Download>(*this, std::move(pinned));
}

}  // namespace kolo::models::cuda

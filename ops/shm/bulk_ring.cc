#include "ops/shm/bulk_ring.h"

#include <algorithm>
#include <utility>

#include "ops/kernels/copy.h"
#include "ops/shm/chunk_layout.h"

namespace kolo {
namespace {

constexpr std::size_t counters = 4 << 10, piece = 128 << 10;
// Of a message, as ShmTuning has it.
constexpr auto spills = static_cast<std::size_t>(ShmTuning{}.spills),
               large = static_cast<std::size_t>(ShmTuning{}.large);

void copy_by(StorePolicy& policy, std::byte* to, const std::byte* from, std::size_t bytes) {
  const CopyTo way = policy.choose(bytes);
  policy.measure(bytes, way, [&] {
    copy(to, from, bytes, way);
    finish_copies();
    return bytes;
  });
}

}  // namespace

std::size_t BulkRing::bytes(std::size_t ranks) {
  constexpr std::size_t all = 1 << 30, largest = 2 << 20, page = 4 << 10;
  const std::size_t one = std::min(largest, all / (ranks * ranks) / page * page);
  return one < 2 * piece ? 0 : counters + one;
}

BulkRing::BulkRing(std::shared_ptr<Region> region, std::size_t offset, std::size_t bytes, Doorbell* peer)
    : offset_(offset), bytes_(bytes), end_{std::move(region), nullptr, {}, peer} {
  if (bytes == 0) return;
  end_.ring = end_.region->at<Ring>(offset);
  end_.bytes = {end_.region->at<std::byte>(offset + counters), bytes - counters};
}

bool BulkRing::reserve() {
  if (!reserved_) reserved_ = bytes_ > 0 && end_.region->reserve(offset_, bytes_);
  return *reserved_;
}

std::size_t BulkRing::write(const std::byte* data, std::size_t left) {
  const std::size_t most = std::min(piece, left);
  const auto place = end_.room(most, most);
  if (place.empty()) return 0;
  if (data) copy_by(shows_, place.data(), data, place.size());
  end_.put(place.size());
  return place.size();
}

std::span<const std::byte> BulkRing::next(std::size_t left) const {
  const std::size_t most = std::min(piece, left);
  return end_.there(most, most);
}

std::size_t BulkRing::read(std::byte* data, std::size_t left, std::size_t all) {
  const auto place = next(left);
  if (place.empty()) return 0;
  if (data && all >= spills && all < large) {
    copy_by(results_, data, place.data(), place.size());
  } else if (data) {
    copy(data, place.data(), place.size(), all < large ? CopyTo::cache : CopyTo::memory);
    finish_copies();
  }
  end_.take(place.size());
  return place.size();
}

}  // namespace kolo

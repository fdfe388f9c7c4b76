#include "models/data/prefetcher.h"

#include <new>

#include "models/util/error.h"
#include "models/util/headroom.h"

namespace kolo::models {

Prefetcher::Prefetcher(Make make, std::int64_t first, std::int64_t end)
    : make_(std::move(make)),
      end_(end),
      made_(first),
      taken_(first),
      thread_(start_thread("makes batches", [this] { run(); })) {}

Prefetcher::~Prefetcher() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  while (made_ < end_) {
    changed_.wait(lock, [this] { return stop_ || made_ - taken_ < slots - 1; });
    if (stop_) return;
    const std::int64_t number = made_;
    lock.unlock();
    fill(number);
    lock.lock();
    ++made_;
    changed_.notify_all();
  }
}

void Prefetcher::fill(std::int64_t number) {
  Slot& slot = ring_[static_cast<std::size_t>(number % slots)];
  slot.problem.reset();
  try {
    make_(number, slot.storage);
  } catch (const std::bad_alloc&) {
    slot.problem = "there is not enough memory for a batch of examples; use a smaller --batch";
  } catch (const std::exception& error) {
    slot.problem = error.what();
  }
}

Batch Prefetcher::next() {
  std::unique_lock lock(mutex_);
  if (taken_ >= end_) throw ModelError("there are no more batches");
  const std::int64_t number = taken_++;
  changed_.notify_all();  // the batch before is not in use any more
  changed_.wait(lock, [&] { return made_ > number; });
  const Slot& slot = ring_[static_cast<std::size_t>(number % slots)];
  if (slot.problem) throw ModelError(*slot.problem);
  return slot.storage.view();
}

}  // namespace kolo::models

#include "apps/torch/c10d_store.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <kolo/error.h>

namespace kolo_torch {
namespace {

using namespace std::chrono_literals;

/// What the store throws becomes an error of kolo's.
template <class Call>
auto asked(std::string_view key, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw kolo::Error(kolo::ErrorCode::backend, c10::str("c10d's store, at key '", key, "': ", error.what()));
  }
}

}  // namespace

C10dStore::C10dStore(const c10::intrusive_ptr<c10d::Store>& store) : store_(store) {
  try {
    store_ = store->clone();
  } catch (const std::exception&) {  // it cannot
  }
}

void C10dStore::set(std::string_view key, std::span<const std::byte> value) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(value.data());
  asked(key, [&] { store_->set(std::string(key), std::vector<std::uint8_t>(bytes, bytes + value.size())); });
}

kolo::Store::Bytes C10dStore::get(std::string_view key, Deadline deadline) {
  constexpr auto at_once = 5s;  // less than a long wait: who waits cannot be woken
  const std::string name(key);
  for (;;) {
    const bool is_there = asked(key, [&] { return store_->check({name}); });
    const auto now = std::chrono::steady_clock::now();
    if (is_there) break;
    if (now >= deadline)
      throw kolo::Error(kolo::ErrorCode::stalled, c10::str("c10d's store has no key '", key, "' at the deadline"));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline - now, at_once));
    try {
      store_->wait({name}, std::max(left, 1ms));
    } catch (const std::exception&) {  // the time is over, or check() will say what it is
    }
  }
  const auto value = asked(key, [&] { return store_->get(name); });
  const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
  return {bytes, bytes + value.size()};
}

std::int64_t C10dStore::add(std::string_view key, std::int64_t n) {
  return asked(key, [&] { return store_->add(std::string(key), n); });
}

void C10dStore::remove(std::string_view key) {
  asked(key, [&] { return store_->deleteKey(std::string(key)); });
}

}  // namespace kolo_torch

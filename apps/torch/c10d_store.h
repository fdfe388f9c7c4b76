#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <kolo/store.h>

namespace kolo_torch {

/// A store of c10d's, as kolo's ranks meet through one.
class C10dStore final : public kolo::Store {
 public:
  /// On a connection of its own, where the store can have several: who waits on one keeps others from it.
  explicit C10dStore(const c10::intrusive_ptr<c10d::Store>& store);

  void set(std::string_view key, std::span<const std::byte> value) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t n) override;
  void remove(std::string_view key) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace kolo_torch

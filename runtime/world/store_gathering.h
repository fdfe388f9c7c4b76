#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <kolo/config.h>
#include <kolo/store.h>

#include "ops/host/gathering.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// Brings ranks together through a store. In every round each rank sets a key, rank 0 waits for all of them, and sets
/// one that has what they said; a round's keys are removed when all have read them. Keys are called
/// "kolo/EPOCH/ROUND/RANK": the epoch is how often the rank has done this with this store, which it counts in
/// "kolo/epoch/RANK", the only keys that stay.
///
/// Ranks that do not come are reported after `config.stall_report_seconds`, again after 2, 4, 8 times as long; after
/// `config.stall_abort_seconds` all() throws Error{stalled}, on every rank, that names them. So it does with
/// Error{mismatch} if ranks differ in `size`, on those that others do not wait for in vain.
class StoreGathering final : public Gathering {
 public:
  /// Throws Error{invalid_argument} if there is no such rank.
  StoreGathering(Store& store, int rank, int size, const Config& config);
  ~StoreGathering() override;
  StoreGathering(const StoreGathering&) = delete;
  StoreGathering& operator=(const StoreGathering&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::vector<std::byte>> all(std::span<const std::byte> mine) override;
  int lowest_on_node() override;

  /// What the keys of this world begin with.
  std::string prefix() const;

 private:
  std::string key(std::uint64_t round, const std::string& what) const;
  std::string key_of(int rank) const { return key(round_, std::to_string(rank)); }
  std::string key_of_all(std::uint64_t round) const { return key(round, "all"); }
  Store::Bytes collect();
  Store::Bytes wait_for(const std::string& key, Store::Deadline deadline);
  bool has(const std::string& key);
  RankSet missing();

  Store& store_;
  const int rank_, size_;
  const Config config_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_report_;
  std::int64_t epoch_ = 0;
  std::uint64_t round_ = 0;
  bool failed_ = false;
};

}  // namespace kolo

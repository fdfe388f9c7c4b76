#include "runtime/world/store_agreements.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <kolo/error.h>

namespace kolo {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto look_again = 500us;

/// Every rank sets a key with its numbers, and reads those of the others; the last to have read them all removes them.
class StoreAgreement final : public Operation {
 public:
  /// `name`: what its keys begin with.
  StoreAgreement(Store& store, std::string name, int rank, int size, const Bucket& bucket)
      : store_(store), name_(std::move(name)), size_(size), out_(bucket.tensors.front().out) {
    const Tensor& in = bucket.tensors.front().in;
    const std::span mine(static_cast<const std::byte*>(in.data), in.bytes());
    store_.set(key(rank), mine);
    if (out_.data != in.data) std::memcpy(out_.data, in.data, in.bytes());
    for (int other = 0; other < size; ++other) {
      if (other != rank) missing_.push_back(other);
    }
  }

  bool step() override {
    if (complete_ || Clock::now() < next_look_) return complete_;
    while (!missing_.empty()) {
      try {
        combine(store_.get(key(missing_.back()), Clock::now()));
        missing_.pop_back();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::stalled) throw;
        next_look_ = Clock::now() + look_again;
        return false;
      }
    }
    if (store_.add(name_ + "read", 1) == size_) {
      for (int rank = 0; rank < size_; ++rank) store_.remove(key(rank));
      store_.remove(name_ + "read");
    }
    return complete_ = true;
  }
  bool needs_polling() const override { return true; }

 private:
  std::string key(int rank) const { return fmt::format("{}{}", name_, rank); }

  void combine(const Store::Bytes& said) const {
    std::vector<std::uint64_t> numbers(said.size() / sizeof(std::uint64_t));
    if (said.size() != out_.bytes()) throw Error(ErrorCode::backend, "malformed value of a store (of an agreement)");
    std::memcpy(numbers.data(), said.data(), said.size());
    auto* const largest = static_cast<std::uint64_t*>(out_.data);
    std::ranges::transform(numbers, std::span(largest, numbers.size()), largest,
                           [](std::uint64_t one, std::uint64_t other) { return std::max(one, other); });
  }

  Store& store_;
  const std::string name_;
  const int size_;
  const Tensor out_;
  std::vector<int> missing_;
  Clock::time_point next_look_{};
  bool complete_ = false;
};

class StoreAgreements final : public Backend {
 public:
  StoreAgreements(Store& store, std::string prefix, int rank, int size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}
  std::string_view name() const override { return "store"; }
  bool supports(const Signature& signature) const override {
    return signature.kind == OpKind::all_reduce && signature.op == ReduceOp::max && signature.dtype == DType::u64 &&
           signature.device == DeviceKind::cpu;
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<StoreAgreement>(store_, fmt::format("{}{}/", prefix_, started_++), rank_, size_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (group.is_pair()) return nullptr;
    return std::make_unique<StoreAgreements>(store_, fmt::format("{}group {}/", prefix_, group.id), group.rank,
                                             group.size());
  }
  void abandon() noexcept override {}

 private:
  Store& store_;
  const std::string prefix_;
  const int rank_, size_;
  std::uint64_t started_ = 0;
};

}  // namespace

std::unique_ptr<Backend> store_agreements(Store& store, std::string prefix, int rank, int size) {
  return std::make_unique<StoreAgreements>(store, std::move(prefix), rank, size);
}

}  // namespace kolo

// Large messages of a pair, by every way: through rings, or copied out of the sender's memory.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/shm/bulk_ring.h"
#include "tests/ops/shm/as_processes.h"
#include "tests/support/environment.h"

namespace kolo {
namespace {

using testing::AsProcesses;

using Bytes = std::vector<std::uint8_t>;

Bytes message_of(std::size_t bytes, std::size_t seed) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::uint8_t>(i * 7 + i / 1000 + seed);
  return result;
}

/// Rank 0 and the last one, which send each other something.
class Pair {
 public:
  explicit Pair(std::vector<std::unique_ptr<Backend>>& backends) {
    const std::vector<int> ranks{0, static_cast<int>(backends.size()) - 1};
    ends_.push_back(backends.front()->for_group({GroupId{1}, "pair", ranks, 0, GroupKind::pair}));
    ends_.push_back(backends.back()->for_group({GroupId{1}, "pair", ranks, 1, GroupKind::pair}));
  }
  struct Transfer {
    Bucket send, receive;
    std::unique_ptr<Operation> sends, receives;
    bool complete() { return sends->step() & receives->step(); }
  };
  /// From `from` to the other one.
  std::unique_ptr<Transfer> transfer(std::size_t from, std::byte* in, std::byte* out, std::size_t bytes) {
    const Shape shape{static_cast<std::int64_t>(bytes)};
    const Signature signature{
        .kind = OpKind::send_recv, .dtype = DType::u8, .root = static_cast<int>(from), .shape = shape};
    auto result = std::make_unique<Transfer>();
    const Tensor source{in, shape, DType::u8, {}}, target{out, shape, DType::u8, {}};
    result->send = {signature, {{source, {}}}};
    result->receive = {signature, {{target, target}}};
    result->sends = ends_[from]->start(result->send);
    result->receives = ends_[1 - from]->start(result->receive);
    return result;
  }
  /// Both sides in turn, by one thread. Returns how the bytes went.
  std::string move(std::size_t from, std::byte* in, std::byte* out, std::size_t bytes) {
    const auto one = transfer(from, in, out, bytes);
    bool complete = false;
    for (int step = 0; step < 100'000 && !complete; ++step) complete = one->complete();
    EXPECT_TRUE(complete);
    EXPECT_STREQ(one->sends->method(), one->receives->method());
    return one->sends->method();
  }
  /// Checked.
  std::string move(std::size_t bytes) {
    auto source = message_of(bytes, bytes);
    Bytes target(bytes);
    const std::string method = move(bytes % 2, reinterpret_cast<std::byte*>(source.data()),
                                    reinterpret_cast<std::byte*>(target.data()), bytes);
    EXPECT_EQ(source, target) << bytes << " bytes";
    return method;
  }

 private:
  std::vector<std::unique_ptr<Backend>> ends_;
};

std::shared_ptr<const ShmKnown> forced(ShmWay way) {
  return std::make_shared<ShmKnown>(ShmKnown{.forced = way});
}

/// Around what pieces, rings and chunks hold.
constexpr std::size_t sizes[]{65'535,    65'536,    100'001,   131'072,   131'073,   262'144,
                              1'048'577, 2'097'152, 2'097'153, 5'000'001, 8'388'608, 9'000'001};

TEST(ShmPairs, EverySizeGoesByEveryWay) {
  for (const auto& [way, name] : {std::pair(ShmWay::ring, "ring"), std::pair(ShmWay::read, "copied")}) {
    AsProcesses ranks(2, forced(way));
    Pair pair(ranks.pairs);
    for (int round = 0; round < 2; ++round) {
      for (const std::size_t bytes : sizes) EXPECT_EQ(pair.move(bytes), bytes < 65'536 ? "ring" : name) << bytes;
    }
  }
}

TEST(ShmPairs, TwoThreadsMoveWhatTheySendEachOther) {
  for (const std::uint64_t seed : testing::seeds(6)) {
    SCOPED_TRACE(fmt::format("KOLO_TEST_SEED={}", seed));
    const auto known = seed % 3 == 0 ? nullptr : forced(seed % 3 == 1 ? ShmWay::ring : ShmWay::read);
    AsProcesses ranks(3, known);
    Pair pair(ranks.pairs);
    std::mt19937_64 random(seed);
    std::vector<Bytes> in[2], out[2];
    std::vector<std::unique_ptr<Pair::Transfer>> transfers;
    for (std::size_t i = 0; i < 30; ++i) {
      for (std::size_t from : {0u, 1u}) {
        in[from].push_back(message_of(random() % 3 == 0 ? random() % 70'000 : random() % 1'500'000, i));
        out[from].emplace_back(in[from].back().size());
        transfers.push_back(pair.transfer(from, reinterpret_cast<std::byte*>(in[from].back().data()),
                                          reinterpret_cast<std::byte*>(out[from].back().data()),
                                          in[from].back().size()));
      }
    }
    const auto run = [&](std::size_t rank) {
      for (bool complete = false; !complete;) {
        complete = true;
        for (std::size_t i = 0; i < transfers.size(); ++i)
          complete &= (i % 2 == rank ? transfers[i]->sends : transfers[i]->receives)->step();
        if (!complete) std::this_thread::yield();
      }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    EXPECT_EQ(in[0], out[0]);
    EXPECT_EQ(in[1], out[1]);
  }
}

TEST(ShmPairs, WhatTheReceiverCannotReadIsSent) {
  constexpr std::size_t bytes = 300'000;
  AsProcesses ranks(2, forced(ShmWay::read));
  Pair pair(ranks.pairs);
  // No other process is given what this one may only write.
  void* const odd = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(odd, MAP_FAILED);
  const auto message = message_of(bytes, 1);
  std::ranges::copy(message, static_cast<std::uint8_t*>(odd));
  ASSERT_EQ(mprotect(odd, bytes, PROT_WRITE), 0);
  for (int round = 0; round < 3; ++round) {
    Bytes target(bytes);
    EXPECT_EQ(pair.move(0, static_cast<std::byte*>(odd), reinterpret_cast<std::byte*>(target.data()), bytes), "ring");
    EXPECT_EQ(target, message);
    EXPECT_EQ(pair.move(bytes), "copied") << "the next one, in ordinary memory";
  }
  munmap(odd, bytes);
}

TEST(ShmPairs, OfManyRanksTheSmallRingsCarryAll) {
  EXPECT_EQ(BulkRing::bytes(2), (2u << 20) + 4096);
  EXPECT_EQ(BulkRing::bytes(65), 0u);
  std::size_t last = BulkRing::bytes(2);
  for (std::size_t ranks = 3; ranks < 64; ++ranks) {
    const std::size_t bytes = BulkRing::bytes(ranks);
    EXPECT_LE(bytes, last);
    EXPECT_EQ(bytes % 4096, 0u);
    EXPECT_LE(ranks * ranks * bytes, (std::size_t{1} << 30) + ranks * ranks * 4096);
    last = bytes;
  }
  auto backends = shm_thread_pairs_backends(65, {});
  Pair pair(backends);
  for (const std::size_t bytes : {std::size_t{70'000}, std::size_t{1'000'000}}) (void)pair.move(bytes);
}

TEST(ShmPairs, NobodyTouchesTheMemoryOfASenderThatHasLeft) {
  for (const auto way : {ShmWay::ring, ShmWay::read}) {
    AsProcesses ranks(2, forced(way));
    Pair pair(ranks.pairs);
    Bytes target(3'000'000);
    auto source = std::make_unique<Bytes>(message_of(target.size(), 1));
    const auto one = pair.transfer(0, reinterpret_cast<std::byte*>(source->data()),
                                   reinterpret_cast<std::byte*>(target.data()), target.size());
    EXPECT_FALSE(one->sends->step());
    EXPECT_FALSE(one->receives->step());
    one->sends.reset();
    source.reset();
    try {
      for (int step = 0; step < 100; ++step) EXPECT_FALSE(one->receives->step());
      EXPECT_EQ(way, ShmWay::ring) << "what comes through a ring ends, and the runtime says why";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_EQ(way, ShmWay::read);
    }
  }
}

}  // namespace
}  // namespace kolo

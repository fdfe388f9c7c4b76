#include "ops/mailbox.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ops/shm/pairs.h"
#include "ops/shm/reach.h"
#include "tests/ops/shm/as_processes.h"
#include "tests/support/environment.h"

namespace kolo {
namespace {

using testing::AsProcesses;

std::vector<std::byte> message_of(std::size_t bytes, int seed) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  return result;
}

Parcel parcel(bool sends, std::vector<int> peers, int tag, std::span<std::byte> memory) {
  Parcel result;
  result.sends = sends;
  result.peers = std::move(peers);
  result.tags = {tag};
  result.dtype = DType::u8;
  result.data = memory.data();
  result.bytes = memory.size();
  return result;
}

/// How large messages come: the receiver copies them; it is sent them, through the small ring or in bulk; it can copy
/// as many parts, and is sent the rest.
enum class Way { copied, sent, in_bulk, copied_in_part };
constexpr std::array ways{Way::copied, Way::sent, Way::in_bulk, Way::copied_in_part};

class LaneOfWay final : public ByteLane {
 public:
  LaneOfWay(std::unique_ptr<ByteLane> real, Way way) : real_(std::move(real)), way_(way) {}
  std::size_t write(std::span<const std::byte> bytes) override { return real_->write(bytes); }
  std::size_t read(std::span<std::byte> bytes) override { return real_->read(bytes); }
  bool pending() const override { return real_->pending(); }
  bool needs_polling() const override { return real_->needs_polling(); }
  std::optional<LaneAddress> show(std::span<const std::byte> bytes) override {
    return way_ == Way::sent || way_ == Way::in_bulk ? std::nullopt : real_->show(bytes);
  }
  bool has_bulk(std::size_t bytes) override { return way_ != Way::sent && real_->has_bulk(bytes); }
  std::size_t write_bulk(const std::byte* data, std::size_t left) override { return real_->write_bulk(data, left); }
  std::size_t read_bulk(std::byte* data, std::size_t left, std::size_t all) override {
    return real_->read_bulk(data, left, all);
  }
  bool pending_bulk(std::size_t left) const override { return real_->pending_bulk(left); }
  void withdraw() noexcept override { real_->withdraw(); }
  std::uint64_t withdrawn() const override { return real_->withdrawn(); }
  Fetched fetch(const LaneAddress& address, std::size_t offset, std::span<std::byte> to, std::uint64_t heard) override {
    if (way_ == Way::copied_in_part && fetches_++ % 3 == 1) return Fetched::impossible;
    return real_->fetch(address, offset, to, heard);
  }

 private:
  const std::unique_ptr<ByteLane> real_;
  const Way way_;
  int fetches_ = 0;
};

/// Mailboxes of ranks that share rings.
struct Boxes {
  explicit Boxes(int ranks, Way way = Way::copied) : Boxes(shm_thread_pairs_backends(ranks, {}), way) {}
  Boxes(std::vector<std::unique_ptr<Backend>> all, Way way) : backends(std::move(all)) {
    for (int rank = 0; rank < static_cast<int>(backends.size()); ++rank) {
      Backend& backend = *backends[static_cast<std::size_t>(rank)];
      boxes.push_back(std::make_unique<Mailbox>(
          rank, [&backend, way](int peer) { return std::make_unique<LaneOfWay>(backend.lane(peer), way); }));
    }
  }
  Mailbox& operator[](int rank) { return *boxes[static_cast<std::size_t>(rank)]; }
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& box : boxes) moved |= box->advance();
    }
  }
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Mailbox>> boxes;
};

TEST(Mailbox, AWithdrawnSendIsNotReceived) {
  for (const auto& [bytes, way] :
       {std::pair(std::size_t{10}, Way::copied), std::pair(std::size_t{3'000'000}, Way::copied),
        std::pair(std::size_t{3'000'000}, Way::sent), std::pair(std::size_t{3'000'000}, Way::in_bulk)}) {
    Boxes boxes(2, way);
    auto first = message_of(bytes, 1), second = message_of(bytes, 2), got = message_of(bytes, 0);
    Parcel a = parcel(true, {1}, 3, first), b = parcel(true, {1}, 3, second), r = parcel(false, {0}, 3, got);
    boxes[0].post(a);
    boxes.settle();
    boxes[0].withdraw(a);
    boxes[0].post(b);
    boxes[1].post(r);
    boxes.settle();
    EXPECT_TRUE(b.done && r.done);
    EXPECT_EQ(got, second);
  }
}

/// Word of it waits behind a large message that fills the lane.
TEST(Mailbox, AWithdrawnSendIsNotReceivedBeforeWordOfIt) {
  Boxes boxes(2, Way::sent);
  auto large = message_of(3'000'000, 1), first = message_of(10, 2), second = message_of(10, 3);
  std::vector<std::byte> got_large(large.size()), got(first.size());
  Parcel a = parcel(true, {1}, 3, large), r = parcel(false, {0}, 3, got_large);
  Parcel b = parcel(true, {1}, 4, first), c = parcel(true, {1}, 4, second), s = parcel(false, {0}, 4, got);
  boxes[1].post(r);
  boxes[0].post(a);
  boxes[1].advance();
  boxes[0].post(b);
  boxes[0].advance();
  boxes[0].withdraw(b);
  boxes[1].post(s);
  EXPECT_FALSE(s.done);
  boxes[0].post(c);
  boxes.settle();
  EXPECT_TRUE(r.done && s.done && c.done);
  EXPECT_EQ(got_large, large);
  EXPECT_EQ(got, second);
}

TEST(Mailbox, ASendWithdrawnInTheMiddleLeavesItsReceiveToTheNext) {
  for (const Way way : ways) {
    Boxes boxes(2, way);
    auto first = message_of(3'000'000, 1), second = message_of(3'000'000, 2), small = message_of(5, 3);
    std::vector<std::byte> got(3'000'000), got_small(5);
    Parcel a = parcel(true, {1}, 3, first), b = parcel(true, {1}, 3, second), c = parcel(true, {1}, 4, small);
    Parcel r = parcel(false, {0}, 3, got), s = parcel(false, {0}, 4, got_small);
    boxes[1].post(r);
    boxes[0].post(a);
    boxes[1].advance();  // copies some
    boxes[0].advance();  // hears of that; or fills the ring
    EXPECT_FALSE(a.done);
    EXPECT_TRUE(a.matched);
    boxes[0].withdraw(a);
    std::ranges::fill(first, std::byte{0xee});  // nothing reads it any more
    boxes[0].post(b);
    boxes[0].post(c);
    boxes[1].post(s);
    boxes.settle();
    EXPECT_TRUE(b.done && c.done && r.done && s.done);
    EXPECT_EQ(got, second);
    EXPECT_EQ(got_small, small);
  }
}

TEST(Mailbox, AReceiveWithdrawnInTheMiddleIsWrittenNoMore) {
  for (const Way way : ways) {
    Boxes boxes(2, way);
    auto first = message_of(3'000'000, 1), second = message_of(3'000'000, 2);
    std::vector<std::byte> got(3'000'000), next(3'000'000);
    Parcel a = parcel(true, {1}, 3, first), b = parcel(true, {1}, 3, second);
    Parcel r = parcel(false, {0}, 3, got), s = parcel(false, {0}, 3, next);
    boxes[1].post(r);
    boxes[0].post(a);
    boxes[1].advance();
    boxes[0].advance();
    boxes[1].advance();
    EXPECT_NE(got[1], std::byte{0});
    if (way == Way::copied && r.done) continue;  // in two passes
    boxes[1].withdraw(r);
    std::ranges::fill(got, std::byte{0xee});
    boxes[0].post(b);
    boxes[1].post(s);
    boxes.settle();
    EXPECT_TRUE(a.done && b.done && s.done);
    EXPECT_EQ(got, std::vector<std::byte>(got.size(), std::byte{0xee}));
    EXPECT_EQ(next, second);
  }
}

/// Copies are bounded, and word of a small message is heard between them.
TEST(Mailbox, ASmallMessagePassesALargeOneThatIsCopied) {
  Boxes boxes(2);
  auto large = message_of(4 << 20, 1), small = message_of(5, 2);
  std::vector<std::byte> got(large.size()), got_small(small.size());
  Parcel a = parcel(true, {1}, 3, large), b = parcel(true, {1}, 4, small);
  Parcel r = parcel(false, {0}, 3, got), s = parcel(false, {0}, 4, got_small);
  boxes[1].post(r);
  boxes[1].post(s);
  boxes[0].post(a);
  boxes[1].advance();
  boxes[0].post(b);
  boxes[1].advance();
  EXPECT_TRUE(s.done);
  EXPECT_FALSE(r.done);
  boxes.settle();
  EXPECT_TRUE(a.done && r.done);
  EXPECT_EQ(got, large);
}

/// Where the other rank cannot be waited for, what it withdraws is copied no more, and what was copied meanwhile is not
/// believed, before word of that has come.
TEST(Mailbox, WhatIsWithdrawnIsNotBelievedBeforeWordOfIt) {
  AsProcesses processes(2);
  const auto memory = processes.memory(0).allocate(100, {});
  std::memset(memory.get(), 1, 100);
  const auto out = processes.pairs[0]->lane(1), in = processes.pairs[1]->lane(0);
  std::array<std::byte, 10> got{};
  const auto address = out->show({memory.get(), 100});
  ASSERT_TRUE(address);
  EXPECT_EQ(in->fetch(*address, 90, got, 0), ByteLane::Fetched::all);
  EXPECT_EQ(got[9], std::byte{1});
  out->withdraw();
  EXPECT_EQ(in->fetch(*address, 0, got, 0), ByteLane::Fetched::withdrawn);
  EXPECT_EQ(in->fetch(*address, 0, got, 1), ByteLane::Fetched::all);
  EXPECT_FALSE(out->show(std::as_bytes(std::span(got))));  // not in shared memory
  EXPECT_FALSE(in->show(std::as_bytes(std::span(got))));
}

/// One thread sends and withdraws, at any time, and then writes to the memory at once; what the other one receives is
/// one message.
void withdraw_at_random(Boxes& boxes, const std::function<std::shared_ptr<std::byte>(std::size_t)>& allocate,
                        std::uint64_t seed) {
  SCOPED_TRACE("KOLO_TEST_SEED=" + std::to_string(seed));
  constexpr std::size_t bytes = 1'500'000;
  constexpr int messages = 300;
  std::atomic<bool> sent{false};
  int withdrawn = 0, received = 0;
  std::thread sender([&] {
    std::mt19937_64 random(seed);
    for (int i = 0; i < messages; ++i) {
      const auto memory = allocate(bytes);
      std::memset(memory.get(), 1 + i % 250, bytes);
      Parcel one = parcel(true, {1}, 3, {memory.get(), bytes});
      boxes[0].post(one);
      for (auto steps = i % 3 == 0 ? ~0u : random() % 40; steps > 0 && !one.done; --steps) {
        if (!boxes[0].advance()) std::this_thread::yield();
      }
      if (!one.done) ++withdrawn;
      boxes[0].withdraw(one);
      std::memset(memory.get(), 0xff, bytes);
    }
    sent = true;
    while (boxes[0].has_work()) boxes[0].advance();
  });
  std::vector<std::byte> got(bytes);
  for (bool over = false; !over;) {  // and once more, for what is in the ring
    over = sent;
    Parcel one = parcel(false, {0}, 3, got);
    boxes[1].post(one);
    while (!one.done) {
      const bool no_more = sent;
      if (boxes[1].advance()) continue;
      if (no_more) break;
      std::this_thread::yield();
    }
    if (one.done) {
      ++received;
      const auto other = std::ranges::find_if(got, [&](std::byte value) { return value != got[0]; });
      EXPECT_TRUE(other == got.end() && got[0] != std::byte{0xff}) << "from byte " << other - got.begin();
    }
    boxes[1].withdraw(one);
  }
  sender.join();
  EXPECT_GE(received, messages / 3);
  EXPECT_GT(withdrawn, 0);
}

TEST(Mailbox, RandomWithdrawalsBetweenThreads) {
  for (const std::uint64_t seed : testing::seeds(6)) {
    Boxes boxes(2, seed % 2 == 0 ? Way::copied : Way::in_bulk);
    withdraw_at_random(
        boxes,
        [](std::size_t bytes) {
          return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
        },
        seed);
  }
}

/// ThreadSanitizer would see that what is not believed was read while it was written to.
TEST(MailboxOfProcesses, RandomWithdrawals) {
  for (const std::uint64_t seed : testing::seeds(5)) {
    AsProcesses processes(2);
    Boxes boxes(std::move(processes.pairs), Way::copied);
    withdraw_at_random(
        boxes, [&](std::size_t bytes) { return processes.memory(0).allocate(bytes, {}); }, seed);
  }
}

/// What comes while a receive is posted does not overtake what had come before.
TEST(Mailbox, AReceiveTakesWhatCameFirst) {
  Boxes boxes(2);
  std::array<std::vector<std::byte>, 3> sent{message_of(4, 1), message_of(4, 2), message_of(4, 3)};
  std::array<std::vector<std::byte>, 3> got{sent[0], sent[0], sent[0]};
  std::vector<Parcel> sends, receives;
  for (std::size_t i = 0; i < 3; ++i) {
    sends.push_back(parcel(true, {1}, 3, sent[i]));
    receives.push_back(parcel(false, {0}, 3, got[i]));
  }
  boxes[0].post(sends[0]);
  boxes[0].post(sends[1]);
  boxes[1].post(receives[0]);  // hears of both
  boxes[0].post(sends[2]);
  boxes[1].post(receives[1]);
  boxes[1].post(receives[2]);
  boxes.settle();
  EXPECT_EQ(got, sent);
}

TEST(Mailbox, WhatNobodyReceivesIsBounded) {
  Boxes boxes(2);
  constexpr std::size_t count = 1000;
  std::vector<std::vector<std::byte>> memory(2 * count, std::vector<std::byte>(Mailbox::eager));
  std::vector<Parcel> sends, receives;
  for (std::size_t i = 0; i < count; ++i) {
    memory[i] = message_of(Mailbox::eager, static_cast<int>(i));
    sends.push_back(parcel(true, {1}, static_cast<int>(i), memory[i]));
    receives.push_back(parcel(false, {0}, static_cast<int>(i), memory[count + i]));
  }
  for (auto& one : sends) boxes[0].post(one);
  for (std::size_t i = count; i-- > 0;) {  // the last first: it hears of all
    boxes[1].post(receives[i]);
    if (i + 1 == count || i == 0) boxes.settle();
  }
  boxes.settle();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(sends[i].done && receives[i].done) << i;
    ASSERT_EQ(memory[i], memory[count + i]);
  }
}

/// Ranks in threads: all send each other messages of random sizes and tags, and receive them in another order.
void exchange_at_random(Way way) {
  constexpr int ranks = 3, count = 150, tags = 4;
  Boxes boxes(ranks, way);
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 order(static_cast<unsigned>(rank));
      std::vector<std::pair<Parcel, std::vector<std::byte>>> all;
      std::vector<std::vector<std::byte>> expected;
      for (int other = 0; other < ranks; ++other) {
        if (other == rank) continue;
        for (int i = 0; i < count; ++i) {
          const auto size_of = [&](int from) {
            std::mt19937 draw(static_cast<unsigned>(1000 * from + i));
            return draw() % 4 == 0 ? draw() % 200'000 : draw() % 100;
          };
          all.emplace_back(parcel(true, {other}, i % tags, {}), message_of(size_of(rank), 100 * rank + i));
          expected.emplace_back();
          all.emplace_back(parcel(false, {other}, i % tags, {}), std::vector<std::byte>(size_of(other)));
          expected.push_back(message_of(size_of(other), 100 * other + i));
        }
      }
      std::vector<std::size_t> places(all.size());
      std::iota(places.begin(), places.end(), std::size_t{0});
      const auto key = [&](std::size_t place) {  // tags in another order on every rank; within one as they are
        const Parcel& one = all[place].first;
        return std::tuple((one.tags[0] * (rank + 1) + 2 * one.peers[0] + (one.sends ? 1 : 0)) % 5, place);
      };
      std::ranges::sort(places, {}, key);
      for (const std::size_t place : places) {
        auto& [one, memory] = all[place];
        one.data = memory.data();
        one.bytes = memory.size();
        boxes[rank].post(one);
        if (order() % 3 == 0) boxes[rank].advance();
      }
      const auto complete = [](const auto& entry) { return entry.first.done; };
      while (!std::ranges::all_of(all, complete)) {
        if (!boxes[rank].advance()) std::this_thread::yield();
      }
      ++done;
      while (done < ranks) {  // what is to be answered is
        if (!boxes[rank].advance()) std::this_thread::yield();
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_FALSE(all[i].first.failure);
        if (!all[i].first.sends) {
          EXPECT_EQ(all[i].second, expected[i]);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Mailbox, RandomMessagesBetweenThreads) {
  for (const Way way : ways) exchange_at_random(way);
}

/// What fills up the part under way is no message, though it may be the last part.
TEST(Mailbox, ASendWithdrawnInItsLastPartIsNotReceived) {
  for (const auto& [bytes, way] :
       {std::pair(std::size_t{64} << 10, Way::sent), std::pair(std::size_t{5} << 19, Way::in_bulk)}) {
    Boxes boxes(2, way);
    auto first = message_of(bytes, 1), second = message_of(bytes, 2);
    std::vector<std::byte> got(bytes);
    Parcel a = parcel(true, {1}, 3, first), b = parcel(true, {1}, 3, second), r = parcel(false, {0}, 3, got);
    boxes[1].post(r);
    boxes[0].post(a);
    boxes[1].advance();
    while (boxes[0].advance()) {
    }
    EXPECT_FALSE(a.done);  // the ring is full
    boxes[0].withdraw(a);
    boxes.settle();
    EXPECT_FALSE(r.done);
    boxes[0].post(b);
    boxes.settle();
    EXPECT_TRUE(b.done && r.done);
    EXPECT_EQ(got, second);
  }
}

/// A stopped receiver costs its sender no memory, and the sender goes on when it reads again; what is left in the large
/// ring after that is nothing.
TEST(Mailbox, ALargeMessageWaitsForRoomInBulk) {
  Boxes boxes(2, Way::in_bulk);
  auto message = message_of(9'000'001, 1);
  std::vector<std::byte> got(message.size());
  Parcel a = parcel(true, {1}, 3, message), r = parcel(false, {0}, 3, got);
  boxes[1].post(r);
  boxes[0].post(a);
  boxes[1].advance();
  while (boxes[0].advance()) {
  }
  EXPECT_GE(a.moved, std::size_t{1} << 20);
  EXPECT_LE(a.moved, std::size_t{2} << 20);
  boxes.settle();
  EXPECT_TRUE(a.done && r.done);
  EXPECT_EQ(got, message);
  boxes[1].finished().clear();
  EXPECT_FALSE(boxes[1].has_work());
}

}  // namespace
}  // namespace kolo

// Control messages between ranks of a node, what they publish about themselves, and the first exchange of a session.

#include "runtime/control/node_links.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <thread>

#include "runtime/control/handshake.h"
#include "runtime/control/thread.h"
#include "tests/runtime/negotiation/negotiation_simulation.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;
using testing::nodes_of;

std::vector<std::unique_ptr<NodeLinks>> links_between(int ranks) {
  auto region = heap_region(NodeLinks::bytes(ranks));
  std::vector<std::unique_ptr<NodeLinks>> links;
  for (int rank = 0; rank < ranks; ++rank) links.push_back(std::make_unique<NodeLinks>(region, 0, rank, ranks));
  return links;
}

/// Message number `i` from one rank to another: its length and every byte follow from the three.
std::vector<std::byte> message(int from, int to, int i, std::size_t longest) {
  std::mt19937_64 random(static_cast<std::uint64_t>((from * 100 + to) * 100000 + i));
  std::vector<std::byte> bytes(random() % 20 == 0 ? random() % longest : random() % 60);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(NodeLinksTest, AMessageLongerThanTheRingGoesThroughInPieces) {
  auto links = links_between(2);
  const std::vector<std::byte> big(100000, std::byte{42}), empty;
  links[0]->send(1, big);
  links[0]->send(1, empty);
  EXPECT_FALSE(links[0]->flush());
  ControlChannel::Message received;
  int rounds = 0;
  while (!links[1]->receive(received)) {
    ASSERT_LT(++rounds, 100);
    EXPECT_TRUE(links[0]->pending()) << "the reader rings back once it has made room";
    EXPECT_FALSE(links[0]->receive(received));  // nothing for rank 0, but it goes on sending
  }
  EXPECT_EQ(received.from, 0);
  EXPECT_EQ(received.bytes, big);
  EXPECT_TRUE(links[1]->receive(received));
  EXPECT_TRUE(received.bytes.empty());
  EXPECT_FALSE(links[1]->receive(received));
  EXPECT_TRUE(links[0]->flush());
}

/// Every rank sends to every other, reads what it gets, and sleeps on its doorbell when there is nothing to do.
void exchange(int ranks, int messages, std::size_t longest) {
  auto links = links_between(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      NodeLinks& mine = *links[static_cast<std::size_t>(rank)];
      Doorbell& doorbell = mine.doorbell(rank);
      std::vector<int> next(static_cast<std::size_t>(ranks), 0);
      int sent = 0, received = 0;
      bool flushed = false;
      const auto cycle = [&] {
        bool moved = false;
        for (ControlChannel::Message got; mine.receive(got); moved = true, ++received) {
          EXPECT_EQ(got.bytes, message(got.from, rank, next[static_cast<std::size_t>(got.from)]++, longest));
        }
        if (sent < messages) {
          for (int to = 0; to < ranks; ++to) {
            if (to != rank) mine.send(to, message(rank, to, sent, longest));
          }
          ++sent;
          moved = true;
        }
        flushed = mine.flush();
        return moved;
      };
      while (received < messages * (ranks - 1) || sent < messages || !flushed) {
        doorbell.disarm();
        if (cycle()) continue;
        const auto ticket = doorbell.arm();
        if (!cycle() && (received < messages * (ranks - 1) || !flushed))
          doorbell.sleep(ticket, std::chrono::seconds(20));
      }
    });
  }
  const auto start = std::chrono::steady_clock::now();
  for (auto& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(19)) << "a thread was not woken";
}

TEST(NodeLinksTest, EveryPairDeliversInOrder) {
  exchange(2, 3000, 200);
  exchange(4, 1000, 200);
  exchange(7, 200, 200);
}

TEST(NodeLinksTest, LongMessagesStarveNobody) {
  exchange(2, 300, 60000);
  exchange(4, 100, 60000);
}

TEST(NodeLinksTest, ManyRanksHaveSeveralWordsOfDoorbells) {
  auto links = links_between(130);
  const std::vector<std::byte> bytes(10, std::byte{1});
  for (int from : {0, 63, 64, 127, 128, 129}) links[static_cast<std::size_t>(from)]->send(5, bytes);
  std::vector<int> senders;
  for (ControlChannel::Message got; links[5]->receive(got);) senders.push_back(got.from);
  EXPECT_EQ(senders, (std::vector<int>{0, 63, 64, 127, 128, 129}));
}

TEST(NodeLinksTest, MemoryThatSomethingElseHasWrittenIsAnError) {
  for (const std::uint64_t seed : testing::seeds(200)) {
    std::mt19937_64 random(seed);
    auto region = heap_region(NodeLinks::bytes(3));
    NodeLinks links(region, 0, 1, 3);
    for (std::size_t at = 3 * sizeof(Doorbell); at < NodeLinks::bytes(3); ++at)
      region->data()[at] = static_cast<std::byte>(random());
    ControlChannel::Message message;
    EXPECT_EQ(error_text([&] { (void)links.receive(message); }, ErrorCode::backend).substr(0, 25),
              "malformed control message");
  }
}

TEST(StatusBoardTest, ReadersSeeWholeEntriesOnly) {
  auto region = heap_region(StatusBoard::bytes(2));
  StatusBoard owner(region, 0, 1, {3, 8}), reader(region, 0, 0, {3, 8});
  EXPECT_EQ(reader.read(5), std::nullopt);
  EXPECT_EQ(reader.read(8)->beats, 0u);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t beat = 1; !stop; ++beat) {
      owner.publish({beat, std::vector<std::uint64_t>(beat % 70, beat),
                     std::string(beat % 80, static_cast<char>('a' + beat % 26))});
    }
  });
  for (int whole = 0; whole < 2000;) {
    const auto entry = reader.read(8);
    if (!entry || entry->beats == 0) continue;
    ++whole;
    const auto beat = entry->beats;
    EXPECT_EQ(entry->waiting,
              std::vector<std::uint64_t>(std::min<std::size_t>(beat % 70, StatusBoard::max_waiting), beat));
    EXPECT_EQ(entry->last_completed,
              std::string(std::min<std::size_t>(beat % 80, StatusBoard::max_text), static_cast<char>('a' + beat % 26)));
  }
  stop = true;
  writer.join();
}

std::vector<std::string> shake_hands(const Topology& topology, const std::vector<Config>& configs) {
  auto channels = thread_channels(topology);
  std::vector<std::string> texts(channels.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        agree_on_settings(*channels[rank], configs[rank]);
      } catch (const Error& error) {
        EXPECT_EQ(to_string(error.code()), "mismatch");
        texts[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return texts;
}

TEST(Handshake, AgreesOnEqualSettings) {
  for (const auto& nodes : std::vector<std::vector<int>>{{1}, {2}, {4}, {2, 2}, {1, 1, 1, 1, 1, 1, 1}}) {
    const Topology topology = nodes_of(nodes);
    std::vector<Config> configs(static_cast<std::size_t>(topology.size()));
    for (std::size_t rank = 0; rank < configs.size(); ++rank)
      configs[rank].spin_us = static_cast<std::int64_t>(rank);  // may differ
    for (const auto& text : shake_hands(topology, configs)) EXPECT_EQ(text, "");
  }
}

/// Who knows the verdict may talk to anybody, also to a rank that still waits for it.
TEST(Handshake, KeepsWhatOthersSayMeanwhile) {
  for (int round = 0; round < 40; ++round) {
    auto channels = thread_channels(nodes_of({3, 1, 2}));
    const int ranks = static_cast<int>(channels.size());
    std::vector<std::set<int>> heard(channels.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        ControlChannel& channel = *channels[static_cast<std::size_t>(rank)];
        auto& from = heard[static_cast<std::size_t>(rank)];
        for (const auto& message : agree_on_settings(channel, {})) from.insert(message.from);
        for (int other = 0; other < ranks; ++other) {
          if (other != rank) channel.send(other, std::array{std::byte{1}, std::byte{2}});
        }
        ControlChannel::Message message;
        while (static_cast<int>(from.size()) + 1 < ranks || !channel.flush()) {
          if (channel.receive(message)) from.insert(message.from);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(Handshake, NamesTheSettingThatDiffersOnEveryRank) {
  for (const auto& nodes : std::vector<std::vector<int>>{{4}, {2, 2}, {1, 1, 1, 1}}) {
    std::vector<Config> configs(4);
    configs[2].fusion_bytes = 1024;
    for (const auto& text : shake_hands(nodes_of(nodes), configs)) {
      EXPECT_EQ(
          text,
          "ranks have different values of KOLO_FUSION_BYTES (rank 2: 1024; ranks 0, 1, 3: 67108864); export the same "
          "value to every rank, with mpirun -x KOLO_FUSION_BYTES");
    }
    configs.assign(4, {});
    configs[0].fake_nodes = "4";
    for (const auto& text : shake_hands(nodes_of(nodes), configs)) {
      EXPECT_EQ(
          text,
          "ranks have different values of KOLO_FAKE_NODES (ranks 1-3: none; rank 0: 4); export the same value to every "
          "rank, with mpirun -x KOLO_FAKE_NODES");
    }
  }
}

TEST(Handshake, NamesTheHostsWhereASettingDiffers) {
  Config other;
  other.fusion_bytes = 1024;
  std::vector<std::vector<std::byte>> messages{settings_message({}, 0, "a"), settings_message(other, 1, "b"),
                                               settings_message({}, 2, "c")};
  EXPECT_EQ(error_text([&] { check_settings(messages); }, ErrorCode::mismatch),
            "ranks have different values of KOLO_FUSION_BYTES (rank 1 on b: 1024; ranks 0, 2 on a, c: 67108864); "
            "export the same value to every rank, with mpirun -x KOLO_FUSION_BYTES");
  while (messages.size() < 20)
    messages.push_back(settings_message({}, static_cast<int>(messages.size()),
                                        std::string(1, static_cast<char>('a' + messages.size()))));
  EXPECT_NE(error_text([&] { check_settings(messages); }, ErrorCode::mismatch)
                .find("ranks 0, 2-19 on a, c, d, e, f, g, h, i and others: 67108864"),
            std::string::npos);
}

TEST(Handshake, SettingsThatNobodyWroteAreAnError) {
  for (const std::uint64_t seed : testing::seeds(3000)) {
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::byte>> messages{settings_message({}, 0, "a"), settings_message({}, 1, "b")};
    for (auto changes = 1 + random() % 4; changes > 0; --changes)
      messages[1][random() % messages[1].size()] ^= static_cast<std::byte>(1U << random() % 8);
    if (seed % 4 == 0) messages[1].resize(random() % messages[1].size());
    try {
      check_settings(messages);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::backend || error.code() == ErrorCode::mismatch) << error.what();
    }
  }
}

TEST(Handshake, NamesTheBuildsAndWhoRunsThem) {
  const Config config;
  const Build other{.protocol = 7, .kolo = "9.9.9 (0123456)"};
  const std::vector<std::vector<std::byte>> same{settings_message(config, 0, "a"), settings_message(config, 1, "b")};
  EXPECT_NO_THROW(check_settings(same));
  EXPECT_NE(hash_of_settings(config), hash_of_settings(config, other));
  const std::vector<std::vector<std::byte>> different{
      settings_message(config, 0, "a"), settings_message(config, 1, "b"), settings_message(config, 2, "c", other)};
  EXPECT_EQ(error_text([&] { check_settings(different); }, ErrorCode::mismatch),
            "ranks run different builds of kolo (ranks 0, 1 on a, b: kolo " + Build::own() +
                ", protocol 1; rank 2 on c: kolo 9.9.9 (0123456), protocol 7); start the same one on every host");
}

}  // namespace
}  // namespace kolo

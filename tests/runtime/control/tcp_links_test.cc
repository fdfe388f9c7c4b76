// Control messages between nodes: connections that are made in the background, proved, kept, lost and reported.

#include "runtime/control/tcp_links.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using testing::error_text;

const NetworkAddress loopback{.bytes = {127, 0, 0, 1}};

/// Ranks on nodes, all in this process: the first of each node listens.
class TcpLinksTest : public ::testing::Test {
 protected:
  void start(const std::vector<int>& ranks_of_nodes) {
    for (const int ranks : ranks_of_nodes) {
      NetworkAddress at = loopback;
      FileDescriptor listening = listening_socket(at);
      for (int i = 0; i < ranks; ++i) places_.push_back({at, "rank " + std::to_string(places_.size())});
      listening_.push_back(std::move(listening));
      listening_.resize(places_.size());
    }
  }
  std::unique_ptr<TcpLinks> links(int rank) {
    return std::make_unique<TcpLinks>(
        rank, secret_, std::move(listening_.at(static_cast<std::size_t>(rank))),
        [this](int to) { return places_.at(static_cast<std::size_t>(to)); }, doorbells_[rank]);
  }
  int size() const { return static_cast<int>(places_.size()); }

  /// A rank that makes its own use of a connection.
  std::unique_ptr<Meeting> meeting(int rank) {
    return std::make_unique<Meeting>(
        rank, secret_, std::move(listening_.at(static_cast<std::size_t>(rank))),
        [this](int to) { return places_.at(static_cast<std::size_t>(to)); }, nothing_.get(), doorbells_[rank]);
  }
  static FileDescriptor meet(Meeting& meeting) {
    for (int i = 0; i < 5000 && !meeting.any_met(); ++i) std::this_thread::sleep_for(1ms);
    auto met = meeting.take_met();
    EXPECT_EQ(met.size(), 1u);
    return met.empty() ? FileDescriptor() : std::move(met.front().socket);
  }

  const Meeting::Secret secret_ = Meeting::new_secret();
  std::vector<Meeting::Place> places_;
  std::vector<FileDescriptor> listening_;
  const std::shared_ptr<Region> region_ = heap_region(16 * sizeof(Doorbell));
  Doorbell* const doorbells_ = region_->at<Doorbell>(0);
  const FileDescriptor nothing_{::epoll_create1(0)};
};

/// Until `done`, for at most 20 s: acts, and sleeps on the doorbell when there is nothing to do.
bool drive(TcpLinks& links, Doorbell& doorbell, const std::function<bool()>& done,
           const std::function<void(const ControlChannel::Message&)>& take) {
  const auto give_up = std::chrono::steady_clock::now() + 20s;
  const auto cycle = [&] {
    bool moved = false;
    for (ControlChannel::Message message; links.receive(message); moved = true) take(message);
    links.flush();
    return moved;
  };
  while (!done()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    if (cycle()) continue;
    const auto ticket = doorbell.arm();
    links.listen();
    if (!cycle() && !done()) doorbell.sleep(ticket, 10s);  // a lost ring takes this long
    doorbell.disarm();
  }
  return true;
}

std::vector<std::byte> message(int from, int to, int i) {
  std::mt19937_64 random(static_cast<std::uint64_t>((from * 100 + to) * 100000 + i));
  std::vector<std::byte> bytes(random() % 20 == 0 ? random() % 300000 : random() % 60);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_F(TcpLinksTest, EveryPairDeliversInOrder) {
  start({2, 3});
  constexpr int messages = 200;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([this, rank, mine = links(rank)] {
      std::vector<int> next(static_cast<std::size_t>(size()));
      std::mt19937_64 random(static_cast<std::uint64_t>(rank));
      int missing = (size() - 1) * messages;
      for (int to = 0; to < size(); ++to) {
        if (to != rank) mine->open(to);
      }
      for (int i = 0; i < messages; ++i) {
        for (int to = 0; to < size(); ++to) {
          if (to != rank) mine->send(to, message(rank, to, i));
        }
        if (random() % 4 == 0) mine->flush();
        if (random() % 40 == 0) std::this_thread::sleep_for(5ms);
      }
      EXPECT_TRUE(drive(
          *mine, doorbells_[rank], [&] { return missing == 0 && mine->flush(); },
          [&](const ControlChannel::Message& got) {
            EXPECT_EQ(got.bytes, message(got.from, rank, next[static_cast<std::size_t>(got.from)]++));
            --missing;
          }))
          << "rank " << rank << " misses " << missing << "; " << mine->troubles();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// 50 MB, to one that sleeps first: what does not fit is kept, and goes on when there is room.
TEST_F(TcpLinksTest, ALongMessageTakesItsTime) {
  start({1, 1});
  const std::vector<std::byte> sent(50'000'000, std::byte{7});
  std::thread receiver([&, mine = links(1)] {
    mine->open(0);
    std::this_thread::sleep_for(200ms);
    std::vector<std::byte> got;
    EXPECT_TRUE(drive(
        *mine, doorbells_[1], [&] { return !got.empty(); },
        [&](const ControlChannel::Message& message) { got = message.bytes; }));
    EXPECT_TRUE(got == sent);
    mine->send(0, {});
    EXPECT_TRUE(mine->flush());
  });
  const auto mine = links(0);
  mine->open(1);
  mine->send(1, sent);
  bool answered = false;
  EXPECT_TRUE(drive(
      *mine, doorbells_[0], [&] { return answered; }, [&](const ControlChannel::Message&) { answered = true; }));
  receiver.join();
}

/// What was sent arrives, also if the sender goes at once, and has not read all that it was sent itself.
TEST_F(TcpLinksTest, ALastMessageArrives) {
  for (int i = 0; i < 50; ++i) {
    places_.clear();
    listening_.clear();
    start({1, 1});
    const std::vector<std::byte> sent(100'000, std::byte{7});
    std::thread sender([&, mine = links(1)]() mutable {
      mine->open(0);
      mine->send(0, sent);
      bool met = false;
      EXPECT_TRUE(drive(
          *mine, doorbells_[1], [&] { return met && mine->flush(); },
          [&](const ControlChannel::Message&) { met = true; }));
      mine.reset();
    });
    const auto mine = links(0);
    mine->open(1);
    for (int message = 0; message < 100; ++message) mine->send(1, std::vector<std::byte>(1000));
    bool arrived = false;
    EXPECT_TRUE(drive(
        *mine, doorbells_[0], [&] { return arrived; },
        [&](const ControlChannel::Message& message) { arrived = message.bytes == sent; }));
    sender.join();
  }
}

TEST_F(TcpLinksTest, WhoIsNotThereIsNamed) {
  start({1, 1});
  const auto mine = links(0);
  mine->open(1);
  mine->send(1, {});
  EXPECT_TRUE(mine->flush()) << "there is nothing that could be done";
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(mine->troubles(), "rank 1 does not answer at " + to_string(places_[1].address));
  listening_[1].reset();
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(mine->troubles(), "no connection to rank 1 at " + to_string(places_[1].address) + ": Connection refused");
}

TEST_F(TcpLinksTest, WhoHasGoneIsNamed) {
  start({1, 1});
  const auto mine = links(0);
  auto other = links(1);
  mine->open(1);
  other->open(0);
  other->send(0, {});
  bool arrived = false;
  const auto take = [&](const ControlChannel::Message&) { arrived = true; };
  for (ControlChannel::Message message; !arrived; std::this_thread::sleep_for(1ms)) {
    other->flush();
    if (mine->receive(message)) take(message);
    mine->flush();
  }
  other.reset();
  EXPECT_TRUE(drive(
      *mine, doorbells_[0], [&] { return !mine->troubles().empty(); }, take));
  EXPECT_EQ(mine->troubles(), "the connection to rank 1 was lost: it was closed there");
  EXPECT_TRUE(mine->pending());
  const auto loss = mine->take_loss();
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->rank, 1);
  EXPECT_EQ(loss->text, "rank 1 is gone: the connection to it was lost (it was closed there)");
  EXPECT_FALSE(mine->take_loss() || mine->pending());
  mine->send(1, {});
  EXPECT_TRUE(mine->flush());
}

TEST_F(TcpLinksTest, WhatIsNoMessageEndsTheConnection) {
  start({1, 1});
  const auto mine = links(0);
  const auto other = meeting(1);
  mine->open(1);
  other->call(0);
  const FileDescriptor socket = meet(*other);
  const std::uint32_t length = ~0U;
  ASSERT_EQ(::send(socket.get(), &length, sizeof length, 0), 4);
  EXPECT_TRUE(drive(
      *mine, doorbells_[0], [&] { return !mine->troubles().empty(); }, [](const ControlChannel::Message&) {}));
  EXPECT_EQ(mine->troubles(), "the connection to rank 1 was lost: what comes over it is no message");
}

/// Connects to a rank's place, and says something.
FileDescriptor stranger(const NetworkAddress& at, std::string_view says) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(at.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(::send(socket.get(), says.data(), says.size(), MSG_NOSIGNAL), static_cast<ssize_t>(says.size()));
  return socket;
}

/// Whether the other side hangs up within a second, without a word.
bool is_sent_away(const FileDescriptor& socket) {
  const timeval second{1, 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  char byte = 0;
  const ssize_t count = ::recv(socket.get(), &byte, 1, 0);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

TEST_F(TcpLinksTest, StrangersHarmNobody) {
  start({1, 1});
  const auto mine = links(0);
  EXPECT_TRUE(is_sent_away(stranger(places_[0].address, std::string(48, 'x'))));
  EXPECT_TRUE(is_sent_away(stranger(places_[0].address, "GET / HTTP/1.1\r\nHost: a-host-with-a-long-name\r\n\r\n")));
  EXPECT_TRUE(is_sent_away(stranger(places_[0].address, std::string("kolo tcp") + std::string(40, '\0'))))
      << "without the secret";
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(stranger(places_[0].address, i % 2 == 0 ? "" : "kolo"));
  const auto start = std::chrono::steady_clock::now();
  const auto other = meeting(1);
  other->call(0);
  EXPECT_TRUE(meet(*other));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  EXPECT_TRUE(is_sent_away(silent.front())) << "the oldest make room";
  EXPECT_FALSE(is_sent_away(silent.back())) << "the others have 10 s";
}

TEST_F(TcpLinksTest, ACallerIsLetInOnceThereAreDescriptorsAgain) {
  start({1, 1});
  const auto mine = links(0);
  const auto other = meeting(1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<FileDescriptor> taken;
  const FileDescriptor socket = stranger(places_[0].address, "");  // while there are some, with room for one more
  for (;;) {
    taken.emplace_back(::dup(0));
    if (!taken.back()) break;
    if (taken.back().get() < 64) continue;
    const rlimit few{64, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  taken.resize(taken.size() - 2);  // one for the caller's own socket
  other->call(0);
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(other->any_met());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(meet(*other));
}

TEST(Network, AnInterfaceThatIsNotThereIsNamed) {
  EXPECT_NE(error_text([] { (void)own_addresses("lo,no such"); }, ErrorCode::invalid_argument)
                .find("KOLO_INTERFACE=lo,no such: no interface no such with an address is up on this host; there is "),
            std::string::npos);
  EXPECT_EQ(own_addresses("lo").front(), loopback);
}

TEST(Network, AddressesThatHostsShareAreNotUsed) {
  const auto address = [](std::uint8_t last) { return NetworkAddress{.bytes = {10, 0, 0, last}}; };
  const std::vector<std::string> hosts{"a", "b", "b"};
  const std::vector<std::vector<NetworkAddress>> addresses{
      {address(9), address(1)}, {address(2), address(9)}, {address(2), address(9)}};
  EXPECT_EQ(unshared(0, hosts, addresses), std::vector{address(1)});
  EXPECT_EQ(unshared(1, hosts, addresses), std::vector{address(2)}) << "nodes of one host may share";
}

TEST(Network, TheAddressTowardsANeighbourIsTaken) {
  const std::vector<NetworkAddress> mine{{.bytes = {192, 0, 2, 77}}, loopback};
  const std::vector<NetworkAddress> theirs{{.bytes = {127, 0, 0, 5}}};
  EXPECT_EQ(address_towards(mine, theirs), loopback);
  EXPECT_EQ(address_towards(std::vector{mine.front()}, theirs), mine.front());
  EXPECT_EQ(
      to_string(NetworkAddress{.v6 = true, .bytes = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, .port = 42}),
      "[fd00::1]:42");
}

}  // namespace
}  // namespace kolo

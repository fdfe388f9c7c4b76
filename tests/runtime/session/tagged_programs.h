#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <kolo/session.h>

#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

// Sends and receives in ordered groups, by tag, for ranks as threads and as processes.

inline Group ordered_group(Session& session) {
  std::vector<int> all(static_cast<std::size_t>(session.size()));
  std::iota(all.begin(), all.end(), 0);
  return session.new_group(all, {.order = Order::program});
}

/// What `from` sends as the `number`-th message of a tag.
inline std::vector<std::int32_t> tagged_values(std::size_t count, int from, int tag, int number) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<std::int32_t>(i % 1000) + 1000 * (from + 10 * tag + 100 * number);
  return values;
}

/// Every rank to every other: small, empty and large messages under several tags, received in another order than sent.
inline void send_by_tag(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const Group group = ordered_group(session);
  constexpr std::array<std::size_t, 5> sizes{1, 0, 2000, 3000, 300'001};
  constexpr int tags = 3, rounds = 2;
  for (int other = 0; other < n; ++other) {
    if (other == rank) continue;
    std::vector<std::vector<std::int32_t>> sent, got;
    std::vector<Handle> handles;
    sent.reserve(100);
    got.reserve(100);
    const auto receive = [&] {
      for (int tag = tags - 1; tag >= 0; --tag) {
        for (int i = 0; i < rounds * static_cast<int>(sizes.size()); ++i) {
          got.emplace_back(sizes[static_cast<std::size_t>(i) % sizes.size()]);
          handles.push_back(session.recv_async(view(got.back()), other, {.group = group, .tag = tag}));
        }
      }
    };
    if (rank < other) receive();
    for (int i = 0; i < rounds * static_cast<int>(sizes.size()); ++i) {
      for (int tag = 0; tag < tags; ++tag) {
        sent.push_back(tagged_values(sizes[static_cast<std::size_t>(i) % sizes.size()], rank, tag, i));
        handles.push_back(session.send_async(view(sent.back()), other, {.group = group, .tag = tag}));
      }
    }
    if (rank > other) receive();
    for (auto& handle : handles) handle.wait();
    std::size_t next = 0;
    for (int tag = tags - 1; tag >= 0; --tag) {
      for (int i = 0; i < rounds * static_cast<int>(sizes.size()); ++i, ++next)
        EXPECT_EQ(got[next], tagged_values(got[next].size(), other, tag, i)) << "tag " << tag << ", number " << i;
    }
  }
  session.remove_group(group);
}

/// In place of a partner: whoever sends, of some tags.
inline void receive_from_any(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const Group group = ordered_group(session);
  constexpr std::array chosen{2, 5};
  if (rank == 0) {
    std::vector<int> counts(static_cast<std::size_t>(n));
    for (int i = 0; i < 2 * (n - 1); ++i) {
      std::vector<std::int32_t> values(40'000, -1);
      const Received got = session.recv_any(view(values), chosen, {.group = group});
      ASSERT_GT(got.source, 0);
      const int number = counts[static_cast<std::size_t>(got.source)]++;
      EXPECT_EQ(got.tag, chosen[static_cast<std::size_t>(number)]) << "a rank's messages come in order";
      ASSERT_EQ(got.bytes, (number == 0 ? 10u : 40'000u) * 4);
      values.resize(got.bytes / 4);
      EXPECT_EQ(values, tagged_values(values.size(), got.source, got.tag, 0));
    }
    for (int other = 1; other < n; ++other) {
      std::int32_t value = -1;
      const Received got = session.recv_any(view_scalar(value), {}, {.group = group});
      EXPECT_EQ(got.tag, 7) << "which nobody has received before";
      EXPECT_EQ(value, got.source);
    }
  } else {
    std::int32_t last = rank;
    Handle other = session.send_async(view_scalar(last), 0, {.group = group, .tag = 7});
    auto few = tagged_values(10, rank, 2, 0), many = tagged_values(40'000, rank, 5, 0);
    session.send(view(few), 0, {.group = group, .tag = 2});
    session.send(view(many), 0, {.group = group, .tag = 5});
    other.wait();
  }
  session.remove_group(group);
}

/// Sends first on every rank, and receives first on every rank: batches wait for each other nowhere.
inline void exchange_batches(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const Group group = ordered_group(session);
  for (int round = 0; round < 4; ++round) {
    const std::size_t count = round < 2 ? 3 : 100'000;
    std::vector<std::vector<std::int32_t>> values;
    std::vector<PairOperation> sends, receives;
    values.reserve(static_cast<std::size_t>(2 * n));
    for (int other = 0; other < n; ++other) {
      if (other == rank) continue;
      values.push_back(tagged_values(count, rank, 0, other));
      sends.push_back({.sends = true, .tensor = view(values.back()), .peer = other});
      values.emplace_back(count);
      receives.push_back({.tensor = view(values.back()), .peer = other});
    }
    auto all = round % 2 == 0 ? sends : receives;
    const auto& rest = round % 2 == 0 ? receives : sends;
    all.insert(all.end(), rest.begin(), rest.end());
    session.batch(all, {.group = group});
    std::size_t next = 1;
    for (int other = 0; other < n; ++other) {
      if (other == rank) continue;
      EXPECT_EQ(values[next], tagged_values(count, other, 0, rank));
      next += 2;
    }
  }
  std::int32_t mine = rank, theirs = -1;
  const std::vector<PairOperation> named{{true, view_scalar(mine), (rank + 1) % n, 0, "batched"},
                                         {false, view_scalar(theirs), (rank + n - 1) % n, 0, "batched"}};
  session.batch(named, {});
  EXPECT_EQ(theirs, (rank + n - 1) % n);
  session.remove_group(group);
}

/// Between all ranks at once, in an order of each rank's own: of sizes around what goes at once and large ones, from
/// and to session memory and other, any number in flight, some in batches.
inline void exchange_at_random(Session& session) {
  constexpr std::size_t eager = 8 << 10;
  constexpr std::array<std::size_t, 9> sizes{0, 1, 100, eager - 1, eager, eager + 1, 70'000, 300'001, 1 << 20};
  struct Message {
    int from, to, tag;
    std::size_t bytes;
    bool sent_from_session, received_in_session;
  };
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const Group group = ordered_group(session);
  for (const std::uint64_t seed : seeds(6)) {
    SCOPED_TRACE("KOLO_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 common(seed), own(seed * 100 + static_cast<std::uint64_t>(rank));
    const auto draw = [](std::mt19937_64& random, int most) {
      return static_cast<int>(random() % static_cast<std::uint64_t>(most));
    };
    std::vector<Message> messages;
    for (int i = 12 * n; i > 0; --i) {
      const int from = draw(common, n), to = (from + 1 + draw(common, n - 1)) % n;
      const std::size_t bytes = sizes[static_cast<std::size_t>(draw(common, sizes.size()))];
      messages.push_back({from, to, draw(common, 3), bytes, draw(common, 2) == 0, draw(common, 2) == 0});
    }
    std::vector<std::size_t> mine;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].from == rank || messages[i].to == rank) mine.push_back(i);
    }
    const auto key = [&](std::size_t i) { return std::tuple(messages[i].from, messages[i].to, messages[i].tag); };
    std::shuffle(mine.begin(), mine.end(), own);
    std::map<std::tuple<int, int, int>, std::set<std::size_t>> in_order;  // those of one pair and tag keep theirs
    for (const std::size_t i : mine) in_order[key(i)].insert(i);
    for (std::size_t& i : mine) i = in_order[key(i)].extract(in_order[key(i)].begin()).value();
    const auto value = [&](std::size_t message, std::size_t at) {
      return static_cast<std::byte>((message * 7 + at + at / 251) % 256);
    };
    std::vector<PairOperation> operations;
    std::vector<std::vector<std::byte>> private_memory;
    std::vector<Memory> session_memory;
    for (const std::size_t i : mine) {
      const Message& one = messages[i];
      const bool sends = one.from == rank;
      std::byte* data = nullptr;
      if (sends ? one.sent_from_session : one.received_in_session) {
        session_memory.push_back(session.allocate(one.bytes));
        data = session_memory.back().data();
      } else {
        private_memory.emplace_back(one.bytes);
        data = private_memory.back().data();
      }
      for (std::size_t at = 0; at < one.bytes; ++at) data[at] = sends ? value(i, at) : std::byte{0xee};
      operations.push_back({.sends = sends,
                            .tensor = {data, Shape{static_cast<std::int64_t>(one.bytes)}, DType::u8, {}},
                            .peer = sends ? one.to : one.from,
                            .tag = one.tag});
    }
    std::vector<Handle> handles;
    for (std::size_t next = 0; next < operations.size();) {
      const std::size_t count =
          std::min<std::size_t>(1 + static_cast<std::size_t>(draw(own, 4)), operations.size() - next);
      for (Handle& handle : session.batch_async(std::span(operations).subspan(next, count), {.group = group}))
        handles.push_back(std::move(handle));
      next += count;
    }
    std::vector<std::size_t> order(handles.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), own);
    for (const std::size_t i : order) handles[i].wait();
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const auto* data = static_cast<const std::byte*>(operations[i].tensor.data);
      std::size_t wrong = 0;
      for (std::size_t at = 0; at < operations[i].tensor.bytes(); ++at) wrong += data[at] != value(mine[i], at);
      const Message& one = messages[mine[i]];
      EXPECT_EQ(wrong, 0u) << one.bytes << " bytes from " << one.from << " to " << one.to << ", tag " << one.tag;
    }
  }
  session.remove_group(group);
}

template <class Call>
std::string failure_text(ErrorCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Both ranks say both sizes and types; what follows is not disturbed. Bad arguments are thrown.
inline void differ_by_tag(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const Group group = ordered_group(session);
  const PairOptions options{.group = group, .tag = 4};
  for (const std::size_t count : {3, 50'000}) {
    std::vector<std::int32_t> three(count, rank);
    std::vector<double> other(count + 2);
    std::string text;
    if (rank == 0)
      text = failure_text(ErrorCode::mismatch, [&] { session.send(view(three), 1, options); });
    else if (rank == 1)
      text = failure_text(ErrorCode::mismatch, [&] { session.recv(view(other), 0, options); });
    if (rank > 1) continue;
    const auto expected =
        fmt::format("tag 4: rank 0 sends {} bytes of i32, rank 1 receives {} bytes of f64", count * 4, (count + 2) * 8);
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    if (rank == 0) session.send(view(three), 1, options);
    if (rank == 1) session.recv(view(three), 0, options);
    EXPECT_EQ(three, std::vector<std::int32_t>(count, 0));
  }
  std::int32_t value = 0;
  const auto invalid = ErrorCode::invalid_argument;
  const auto refused = [&](auto&& call) { (void)failure_text(invalid, call); };
  refused([&] { session.send("name", view_scalar(value), (rank + 1) % n, {.group = group}); });
  refused([&] { session.send(view_scalar(value), (rank + 1) % n, {}); });
  refused([&] { session.recv(view_scalar(value), (rank + 1) % n, {.group = group, .tag = -1}); });
  refused([&] { session.recv(view_scalar(value), rank, {.group = group}); });
  refused([&] { session.recv(view_scalar(value), -1, {.group = group}); });
  refused([&] { session.send("name", view_scalar(value), (rank + 1) % n, {.tag = 1}); });
  session.remove_group(group);
}

/// What is withdrawn, or overdue, leaves no trace in what follows.
inline void withdraw_by_tag(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const Group group = ordered_group(session);
  const PairOptions options{.group = group, .tag = 1};
  std::vector<std::int32_t> small(10, -1), large(100'000, -1);
  if (rank == 0) {
    { Handle dropped = session.send_async(view(large), 1, options); }
    { Handle dropped = session.send_async(view(small), 1, options); }
    const auto text = failure_text(
        ErrorCode::stalled, [&] { session.recv(view(small), 1, {.group = group, .tag = 9, .timeout_seconds = 1}); });
    EXPECT_NE(text.find("recv from rank 1, tag 9"), std::string::npos) << text;
    session.barrier();
    large.assign(large.size(), 5);
    small.assign(small.size(), 6);
    Handle first = session.send_async(view(large), 1, options);
    session.send(view(small), 1, options);
    first.wait();
    session.recv(view(small), 1, {.group = group, .tag = 9});
    EXPECT_EQ(small[0], 7);
  } else if (rank == 1) {
    { Handle dropped = session.recv_async(view(small), 0, {.group = group, .tag = 2}); }
    session.barrier();
    session.recv(view(large), 0, options);
    EXPECT_EQ(large, std::vector<std::int32_t>(large.size(), 5));
    session.recv(view(small), 0, options);
    EXPECT_EQ(small, std::vector<std::int32_t>(small.size(), 6));
    small.assign(small.size(), 7);
    session.send(view(small), 0, {.group = group, .tag = 9});
  } else {
    session.barrier();
  }
  session.remove_group(group);
}

}  // namespace kolo::testing

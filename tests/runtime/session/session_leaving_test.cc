// How long ranks take to leave: all together, or some while the others go on in groups that have none of these.

#include <kolo/session.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <chrono>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using testing::error_text;
using testing::test_config;
using Time = std::chrono::nanoseconds;

constexpr Time allowed = 100ms;
constexpr int tries = 5;  // another process may keep the machine busy during one

/// Some ranks as threads of this process, which can also meet without their sessions.
class LeavingRanks {
 public:
  LeavingRanks(int size, const char* nodes) : size_(size), together_(size) { config_.fake_nodes = nodes; }

  int size() const { return size_; }
  void meet() { together_.arrive_and_wait(); }

  /// Ends a session; see fastest().
  void leave(std::unique_ptr<Session>& session, bool finishes = true) {
    const auto start = std::chrono::steady_clock::now();
    if (!finishes) session->abandon();
    session.reset();
    const Time took = std::chrono::steady_clock::now() - start;
    const std::lock_guard lock(mutex_);
    slowest_ = std::max(slowest_, took);
  }

  /// Plays a program until all of its ranks leave fast enough, a few times at most; returns what the slowest took then.
  Time fastest(const std::function<void(std::unique_ptr<Session>&)>& program) {
    Time best = Time::max();
    for (int i = 0; i < tries && best > allowed; ++i) {
      slowest_ = Time(0);
      testing::run_worlds(
          size_,
          [&](int, World& world) {
            auto session = std::make_unique<Session>(std::move(world), config_);
            program(session);
          },
          config_);
      best = std::min(best, slowest_);
    }
    return best;
  }

 private:
  const int size_;
  Config config_ = test_config();
  std::barrier<> together_;
  std::mutex mutex_;
  Time slowest_{0};
};

struct LeavingPlace {
  int ranks;
  const char* nodes;
};

class LeavingInTime : public ::testing::TestWithParam<LeavingPlace> {
 protected:
  LeavingRanks ranks{GetParam().ranks, GetParam().nodes};
};
INSTANTIATE_TEST_SUITE_P(Worlds, LeavingInTime,
                         ::testing::Values(LeavingPlace{2, ""}, LeavingPlace{3, ""}, LeavingPlace{4, ""},
                                           LeavingPlace{4, "2,2"}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + (*info.param.nodes ? "_on_2_2" : "");
                         });

std::vector<int> members_of(unsigned set) {
  std::vector<int> members;
  for (int rank = 0; set >> rank != 0; ++rank) {
    if ((set >> rank & 1) != 0) members.push_back(rank);
  }
  return members;
}

/// Sums of ones, by name or in order.
void sum_in(Session& session, const Group& group) {
  const bool in_order = group.info()->order == Order::program;
  std::vector<float> ones(1000, 1);
  in_order ? session.all_reduce(view(ones), {.group = group}) : session.all_reduce("sum", view(ones), {.group = group});
  EXPECT_EQ(ones, std::vector<float>(1000, static_cast<float>(group.info()->size())));
}

TEST_P(LeavingInTime, TogetherAfterNothingOperationsAndSleep) {
  for (const int operations : {0, 1, 50}) {
    for (const auto sleep : {0ms, 300ms}) {
      const Time took = ranks.fastest([&](std::unique_ptr<Session>& session) {
        const Group in_order = session->new_group(session->world().info()->ranks, {.order = Order::program});
        for (int i = 0; i < operations; ++i) {
          sum_in(*session, session->world());
          sum_in(*session, in_order);
        }
        std::this_thread::sleep_for(sleep);  // the background threads sleep, too
        ranks.meet();
        ranks.leave(session);
      });
      EXPECT_LE(took, allowed) << "after " << operations << " operations";
    }
  }
}

TEST_P(LeavingInTime, TogetherAfterAMismatchInOrderAndByName) {
  const Time took = ranks.fastest([&](std::unique_ptr<Session>& session) {
    const Group in_order = session->new_group(session->world().info()->ranks, {.order = Order::program});
    std::vector<float> values(session->rank() == 0 ? 3 : 4);
    error_text([&] { session->all_reduce("x", view(values)); }, ErrorCode::mismatch);
    error_text(
        [&] {
          for (;;) session->all_reduce(view(values), {.group = in_order});  // some learn of it when they call again
        },
        ErrorCode::mismatch);
    ranks.meet();
    ranks.leave(session);
  });
  EXPECT_LE(took, allowed);
}

/// What has nobody to meet ends with the session.
TEST_P(LeavingInTime, TogetherWithOperationsThatOneRankOnlyHasBegun) {
  for (const bool in_order : {false, true}) {
    const Time took = ranks.fastest([&](std::unique_ptr<Session>& session) {
      const Group group = session->new_group(session->world().info()->ranks, {.order = Order::program});
      sum_in(*session, group);
      std::vector<float> values(4);
      Handle handle;
      if (session->rank() == 0) {
        handle = in_order ? session->all_reduce_async(view(values), {.group = group})
                          : session->all_reduce_async("x", view(values));
        handle.detach();
      }
      ranks.meet();
      ranks.leave(session);
    });
    EXPECT_LE(took, allowed) << (in_order ? "in order" : "by name");
  }
}

/// A rank that leaves ends what the others wait for, and need it for; what it has sent before arrives.
TEST_P(LeavingInTime, WhileTheOthersWaitForThatRank) {
  for (const std::string_view how : {"by name", "in order", "by tag"}) {
    if (how == "by tag" && *GetParam().nodes != 0) continue;  // between nodes threads have no lanes
    const Time took = ranks.fastest([&](std::unique_ptr<Session>& session) {
      const Group group = session->new_group(session->world().info()->ranks, {.order = Order::program});
      sum_in(*session, group);
      const int last = session->size() - 1;
      std::vector<float> values(4), sent(4, 5);
      Handle handle, message;
      if (session->rank() != last) {
        handle = how == "by name"    ? session->all_reduce_async("x", view(values))
                 : how == "in order" ? session->all_reduce_async(view(values), {.group = group})
                                     : session->recv_async(view(values), last, {.group = group, .tag = 1});
      } else if (how == "by tag") {
        message = session->send_async(view(sent), 0, {.group = group, .tag = 2});
      }
      ranks.meet();
      if (session->rank() != last) {
        const std::string text = error_text([&] { handle.wait(); }, ErrorCode::closed);
        EXPECT_NE(text.find("closed the session"), std::string::npos) << text;
        if (session->rank() == 0 && how == "by tag") {
          session->recv(view(values), last, {.group = group, .tag = 2});
          EXPECT_EQ(values, sent);
          error_text([&] { session->recv(view(values), last, {.group = group, .tag = 2}); }, ErrorCode::closed);
        }
      } else {
        const std::jthread leaves([&] { session->close(); });
        message.wait();
      }
      ranks.leave(session);
    });
    EXPECT_LE(took, allowed) << how;
  }
}

/// …also where the rank is lost that would tell, so that the ranks agree on nothing any more.
TEST_P(LeavingInTime, WhileOneWaitsForAMessageAfterTheRootWasLost) {
  if (ranks.size() < 3 || *GetParam().nodes != 0) return;
  const Time took = ranks.fastest([&](std::unique_ptr<Session>& session) {
    const Group group = session->new_group(members_of(6), {.order = Order::program});
    session->barrier();
    if (session->rank() == 0) session->abandon();
    if (session->rank() > 0) error_text([&] { session->barrier(); }, ErrorCode::aborted);
    ranks.meet();
    std::vector<float> values(4, 5);
    if (session->rank() == 1) {
      Handle waits = session->recv_async(view(values), 1, {.group = group, .tag = 1});
      session->recv(view(values), 1, {.group = group, .tag = 2});
      const std::string text = error_text([&] { waits.wait(); }, ErrorCode::closed);
      EXPECT_NE(text.find("rank 2 closed the session"), std::string::npos) << text;
      error_text([&] { session->recv(view(values), 1, {.group = group, .tag = 2}); }, ErrorCode::closed);
    } else if (session->rank() == 2) {
      session->send(view(values), 0, {.group = group, .tag = 2});
    }
    ranks.leave(session);
  });
  EXPECT_LE(took, allowed);
}

/// Every set of ranks leaves without finishing, whatever place they have in the tree; the others go on in groups that
/// were open, are told who has left in the others, and leave as fast.
TEST_P(LeavingInTime, AnySetWithoutFinishingWhileTheOthersGoOn) {
  const unsigned all = (1u << ranks.size()) - 1;
  for (unsigned leavers = 1; leavers < all; ++leavers) {
    SCOPED_TRACE("leavers " + std::to_string(leavers));
    const Time took = ranks.fastest([&](std::unique_ptr<Session>& session) {
      const Group rest = session->new_group(members_of(all & ~leavers));
      const Group rest_in_order = session->new_group(members_of(all & ~leavers), {.order = Order::program});
      sum_in(*session, session->world());
      const bool leaves = (leavers >> session->rank() & 1) != 0;
      if (!leaves) {
        sum_in(*session, rest);
        sum_in(*session, rest_in_order);
      }
      std::vector<float> values(4);
      Handle pending;
      if (!leaves) pending = session->all_reduce_async("of all", view(values));
      ranks.meet();
      if (leaves) {
        ranks.leave(session, false);
      } else {
        for (int i = 0; i < 20; ++i) {
          sum_in(*session, rest);
          sum_in(*session, rest_in_order);
        }
        const std::string text = error_text([&] { pending.wait(); }, ErrorCode::aborted);
        EXPECT_NE(text.find(" left without finishing"), std::string::npos) << text;
        sum_in(*session, rest);
        sum_in(*session, rest_in_order);
        session->barrier(rest);  // whoever is through first must not leave the others behind
      }
      ranks.meet();
      if (!leaves) ranks.leave(session);
    });
    EXPECT_LE(took, allowed);
  }
}

}  // namespace
}  // namespace kolo

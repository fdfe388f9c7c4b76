// Memory and time follow what is in flight, not what ever was: names, shapes, groups and objects that do not come back.

#include <kolo/session.h>

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::run_ranks;

/// What the process has allocated, as the C library counts it.
double heap_megabytes() {
  const auto info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd) / 1e6;
}

/// How many times as much is to be played.
int scale() {
  const char* const scale = std::getenv("KOLO_TEST_SCALE");
  return scale ? std::atoi(scale) : 1;
}

/// All lengths up to `count` (times KOLO_TEST_SCALE), long and short ones in turns.
std::size_t length(int turn, int count) {
  return 1 + static_cast<std::uint64_t>(turn) * 7919 % static_cast<std::uint64_t>(count * scale());
}

struct Bounds {
  double growth = 0;  // megabytes, from the end of the first tenth on
  double first = 0,
         last = 0;  // seconds that a turn takes: lower quartile of the first tenth, least one of the last three
};

Bounds measure(int count, const std::function<void(Session&, int)>& turn) {
  Bounds bounds;
  (void)heap_megabytes();  // the first call must not be several at once where the program's allocator is another
  run_ranks(2, [&](Session& session) {
    std::vector<double> quartiles;
    double after_first = 0;
    for (int tenth = 0; tenth < 10; ++tenth) {
      std::vector<double> seconds;
      for (int i = tenth * count / 10; i < (tenth + 1) * count / 10; ++i) {
        const auto start = std::chrono::steady_clock::now();
        turn(session, i);
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 4));
      quartiles.push_back(seconds[seconds.size() / 4]);
      if (tenth == 0) after_first = heap_megabytes();
    }
    session.barrier();
    if (session.rank() == 0)
      bounds = {heap_megabytes() - after_first, quartiles.front(),
                *std::min_element(quartiles.end() - 3, quartiles.end())};
  });
  std::printf("grows by %.3f MB; a turn takes %.1f us at first, %.1f us at last\n", bounds.growth, 1e6 * bounds.first,
              1e6 * bounds.last);
  return bounds;
}

/// Plays `count` turns (times KOLO_TEST_SCALE) on two ranks, in tenths. From the end of the first on the heap grows by
/// at most `megabytes`, and a turn takes at most 1.3 times as long at last as at first; in one of three attempts, as
/// the machine may have become slower meanwhile.
void play(int count, double megabytes, const std::function<void(Session&, int)>& turn) {
  count *= scale();
  bool as_fast = false;
  for (int attempt = 0; attempt < 3 && !as_fast; ++attempt) {
    const Bounds bounds = measure(count, turn);
    EXPECT_LE(bounds.growth, megabytes);
    as_fast = bounds.last <= 1.3 * bounds.first + 10e-6;
  }
  EXPECT_TRUE(as_fast) << "the last turns take longer than the first ones";
}

TEST(Bounded, NamesThatDoNotComeBack) {
  play(1000, 4, [](Session& session, int turn) {  // 100 000 names
    std::vector<float> values(100, 1);
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < values.size(); ++i)
      handles.push_back(
          session.all_reduce_async("name " + std::to_string(100 * turn + static_cast<int>(i)), view_scalar(values[i])));
    for (Handle& handle : handles) handle.wait();
    EXPECT_EQ(values, std::vector<float>(100, 2));
  });
}

TEST(Bounded, ShapesUnderOneName) {
  play(5000, 4, [](Session& session, int turn) {
    std::vector<std::int8_t> values(length(turn, 5000), 1);
    session.all_reduce("name", view(values));
    EXPECT_EQ(values.back(), 2);
  });
}

TEST(Bounded, GroupsThatAreRemoved) {
  play(1000, 0.5, [](Session& session, int) {
    const std::vector<int> ranks{0, 1};
    const Group group = session.new_group(ranks);
    float one = 1;
    session.all_reduce("name", view_scalar(one), {.group = group});
    session.remove_group(group);
    EXPECT_EQ(one, 2);
  });
}

TEST(Bounded, GroupsThatAreAbandoned) {
  const auto bounds = measure(5000 * scale(), [](Session& session, int) {
    const std::vector<int> ranks{0, 1};
    const Group group = session.new_group(ranks, {.order = Order::program});
    float one = 1;
    session.barrier();
    Handle handle = session.recv_async(view_scalar(one), 1 - session.rank(), {.group = group, .tag = 1});
    session.abandon_group(group);
    EXPECT_THROW(handle.wait(), Error);
    EXPECT_THROW(session.send(view_scalar(one), 1 - session.rank(), {.group = group, .tag = 1}), Error);
    session.remove_group(group);
  });
  EXPECT_LE(bounds.growth, 0.5);
}

TEST(Bounded, GroupsThatStayAndDoNothing) {
  std::vector<std::vector<Group>> groups(2);
  play(2000, 100, [&](Session& session, int turn) {
    const std::vector<int> ranks{0, 1};
    auto& mine = groups[static_cast<std::size_t>(session.rank())];
    if (turn == 0) mine.clear();
    mine.push_back(session.new_group(ranks));
    for (int i = 0; i < 10; ++i) {
      float one = 1;
      session.all_reduce("name", view_scalar(one), {.group = mine.front()});
      EXPECT_EQ(one, 2);
    }
  });
}

TEST(Bounded, ObjectsOfAllLengths) {
  play(5000, 4, [](Session& session, int turn) {
    const std::string object(length(turn, 5000), 'x');
    EXPECT_EQ(session.broadcast_object("object", object).size(), object.size());
  });
}

TEST(Bounded, TensorsThatAreSubmittedTogether) {
  play(100'000, 4, [](Session& session, int turn) {
    float one = 1;
    const std::vector<NamedTensor> tensors{{"part " + std::to_string(turn), view_scalar(one), view_scalar(one)}};
    session.grouped_all_reduce_async("whole " + std::to_string(turn), tensors).wait();
    EXPECT_EQ(one, 2);
  });
}

}  // namespace
}  // namespace kolo

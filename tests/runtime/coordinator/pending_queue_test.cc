// What is in flight on a rank: names, the order of a rank's program, the turns of barriers.

#include "runtime/coordinator/pending_queue.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/coordinator/completions.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

std::vector<PendingQueue::Item> drained(PendingQueue& queue) {
  std::vector<PendingQueue::Item> items;
  queue.drain(items);
  return items;
}

void retire(PendingQueue& queue, const SubmissionPtr& submission) {
  Submission* const one = submission.get();
  queue.retire({&one, 1});
}

using testing::error_text;
using What = PendingQueue::What;

std::shared_ptr<const GroupInfo> group(GroupId id = 0) {
  auto info = std::make_shared<GroupInfo>();
  info->id = id;
  info->name = id == 0 ? "world" : "rows";
  return info;
}

Request request(const std::string& name, GroupId id = 0) {
  Request result;
  result.text = name;
  result.group = group(id);
  return result;
}

Request barrier(GroupId id = 0) {
  Request result = request("", id);
  result.signature.kind = OpKind::barrier;
  return result;
}

TEST(PendingQueueTest, HandsOutInOrder) {
  PendingQueue queue;
  EXPECT_TRUE(queue.empty());
  const auto a = queue.submit(request("a"));
  queue.push(What::flush, a);
  const auto b = queue.submit(request("b"));
  EXPECT_FALSE(queue.empty());
  const auto items = drained(queue);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].what, What::submit);
  EXPECT_EQ(items[1].what, What::flush);
  EXPECT_EQ(items[2].submission, b);
  EXPECT_EQ((std::vector<std::uint64_t>{items[0].sequence, items[1].sequence, items[2].sequence}),
            (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(a->queued.sequence, 1u);
  EXPECT_EQ(b->queued.sequence, 3u);
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(drained(queue).empty());
}

TEST(PendingQueueTest, ANameInFlightIsTaken) {
  PendingQueue queue;
  const auto first = queue.submit(request("grad"));
  EXPECT_EQ(error_text([&] { queue.submit(request("grad")); }, ErrorCode::in_flight),
            "all_reduce 'grad' in group world: the name is already in flight on this rank; wait for the first "
            "operation or use "
            "another name");
  queue.submit(request("grad", 1));  // of another group
  EXPECT_EQ(drained(queue).size(), 2u);
  EXPECT_EQ(queue.in_flight().front(), first);
  retire(queue, first);
  queue.submit(request("grad"));
  EXPECT_EQ(queue.in_flight().size(), 2u);
}

TEST(PendingQueueTest, OperationsOfANameAreCounted) {
  PendingQueue queue;
  std::vector<std::uint64_t> counts;
  for (const bool withdrawn : {false, true, false, false}) {
    const auto next = queue.submit(request("grad"));
    counts.push_back(next->queued.occurrence);
    next->pending.agreed = !withdrawn;
    retire(queue, next);
  }
  EXPECT_EQ(counts, (std::vector<std::uint64_t>{0, 1, 1, 2})) << "one that was withdrawn was never there";
  for (int i = 0; i < 100; ++i) queue.submit(request("a name that moves the table of names " + std::to_string(i)));
  EXPECT_EQ(queue.submit(request("grad"))->queued.occurrence, 3u);
  EXPECT_EQ(queue.submit(request("grad", 1))->queued.occurrence, 0u);
}

Request declared(std::uint32_t index, GroupId id = 0) {
  Request result = request("", id);
  result.declared = index;
  return result;
}

TEST(PendingQueueTest, ADeclaredNameIsTheSameName) {
  PendingQueue queue;
  const auto index = queue.declare("grad"), other = queue.declare("other");
  EXPECT_EQ(queue.declare("grad"), index);
  EXPECT_NE(other, index);
  for (const bool known_by_name : {false, true}) {
    const GroupId id = known_by_name ? 1 : 0;
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto next = queue.submit((i % 2 == 0) == known_by_name ? request("grad", id) : declared(index, id));
      EXPECT_EQ(next->request.name(), "grad");
      EXPECT_EQ(next->queued.occurrence, i);
      EXPECT_THROW(queue.submit(request("grad", id)), Error);
      EXPECT_EQ(error_text([&] { queue.submit(declared(index, id)); }, ErrorCode::in_flight).substr(0, 17),
                "all_reduce 'grad'");
      next->pending.agreed = true;
      retire(queue, next);
    }
    queue.forget({GroupKind::agreed, id}, "grad");  // its entry is gone
    for (int i = 0; i < 100; ++i) queue.submit(request("a name that takes its place " + std::to_string(i), id));
    const auto again = queue.submit(declared(index, id));
    EXPECT_EQ(again->queued.occurrence, 0u);
    retire(queue, again);
  }
  EXPECT_EQ(error_text([&] { queue.submit(declared(2)); }, ErrorCode::invalid_argument),
            "a TensorId was used that the session's declare() did not return");
}

TEST(PendingQueueTest, AGroupThatIsRemovedTakesNothingMeanwhile) {
  PendingQueue queue;
  const auto before = queue.submit(request("x", 1));
  EXPECT_FALSE(queue.close(group(1)->key())) << "it has something in flight";
  retire(queue, before);
  EXPECT_TRUE(queue.close(group(1)->key()));
  EXPECT_EQ(error_text([&] { queue.submit(request("x", 1)); }, ErrorCode::closed),
            "all_reduce 'x' in group rows: the group is being removed; submit before remove_group()");
  Request pair = request("x", 7);
  pair.parent = group(1);
  EXPECT_THROW(queue.submit(std::move(pair)), Error);
  queue.submit(request("x", 2));
  Request removal = request("", 1);
  removal.signature.kind = OpKind::remove_group;
  const auto refused = queue.submit(std::move(removal));
  refused->completion.failure = Failure{ErrorCode::invalid_argument, "another rank has something in flight"};
  retire(queue, refused);
  queue.submit(request("x", 1));
}

/// What is in flight there has not ended yet.
TEST(PendingQueueTest, AGroupThatIsAbandonedKeepsItsNumbers) {
  PendingQueue queue;
  const auto first = queue.submit(barrier(1));
  Request ends = request("", 1);
  ends.signature.kind = OpKind::remove_group;
  ends.ends = Failure{ErrorCode::closed, "abandoned"};
  retire(queue, queue.submit(std::move(ends)));
  const auto second = queue.submit(barrier(1));
  EXPECT_EQ(second->request.number, 1u);
  Request removes = request("", 1);
  removes.signature.kind = OpKind::remove_group;
  EXPECT_EQ(queue.submit(std::move(removes))->request.number, 0u) << "it counts as if it had never been";
}

TEST(PendingQueueTest, NothingIsTakenOnceItIsClosed) {
  PendingQueue queue;
  queue.submit(request("a"));
  const auto departure = queue.close_with(group());
  EXPECT_EQ(error_text([&] { queue.submit(request("b")); }, ErrorCode::closed),
            "all_reduce 'b' in group world: the session is closed; submit before close()");
  const auto items = drained(queue);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].what, What::depart);
  EXPECT_EQ(queue.in_flight().back(), departure);
}

TEST(PendingQueueTest, BarriersAreNumberedPerGroup) {
  PendingQueue queue;
  const auto first = queue.submit(barrier()), second = queue.submit(barrier()), other = queue.submit(barrier(1));
  EXPECT_EQ(first->request.name(), "kolo.barrier.0");
  EXPECT_EQ(second->request.name(), "kolo.barrier.1");
  EXPECT_EQ(other->request.name(), "kolo.barrier.0");
  first->pending.agreed = true;
  retire(queue, first);
  const auto third = queue.submit(barrier());
  EXPECT_EQ(third->request.name(), "kolo.barrier.2") << "not the name that is free on this rank only";
}

TEST(PendingQueueTest, AWithdrawnBarrierGivesItsNumberToTheNext) {
  PendingQueue queue;
  const auto first = queue.submit(barrier()), second = queue.submit(barrier());
  retire(queue, first);  // neither agreed nor failed
  const auto third = queue.submit(barrier()), fourth = queue.submit(barrier());
  EXPECT_EQ(third->request.name(), "kolo.barrier.0");
  EXPECT_EQ(fourth->request.name(), "kolo.barrier.2");
}

TEST(PendingQueueTest, BarriersInFlightAreLimited) {
  PendingQueue queue;
  for (std::uint64_t i = 0; i < PendingQueue::max_barriers; ++i) queue.submit(barrier());
  EXPECT_EQ(error_text([&] { queue.submit(barrier()); }, ErrorCode::in_flight).substr(0, 41),
            "barrier 'kolo.barrier.0' in group world: ");
}

TEST(PendingQueueTest, ThreadsKeepTheirOwnOrder) {
  PendingQueue queue;
  const int threads = 4, each = 500;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      for (int i = 0; i < each; ++i) queue.submit(request(std::to_string(worker) + "." + std::to_string(i)));
    });
  }
  std::vector<int> next(threads, 0);
  std::uint64_t sequence = 0;
  for (int seen = 0; seen < threads * each;) {
    for (const auto& item : drained(queue)) {
      EXPECT_EQ(item.sequence, ++sequence);
      const int worker = item.submission->request.name()[0] - '0';
      EXPECT_EQ(item.submission->request.name().substr(2), std::to_string(next[static_cast<std::size_t>(worker)]++));
      retire(queue, item.submission);
      ++seen;
    }
  }
  for (auto& worker : workers) worker.join();
  EXPECT_TRUE(queue.in_flight().empty());
}

/// Else it would take the processor from the thread that completes the next one, to wait for that.
TEST(CompletionsTest, WhoeverWakesFindsEverythingComplete) {
  PendingQueue queue;
  Completions completions(queue, [](const std::string&) {});
  std::vector<SubmissionPtr> all;
  for (int i = 0; i < 20000; ++i) {
    all.push_back(queue.submit(request(std::to_string(i))));
    completions.finished().push_back({all.back(), std::nullopt});
  }
  std::ptrdiff_t incomplete = -1;
  std::jthread waiting([&] {
    all.front()->completion.done.wait();
    incomplete = std::ranges::count_if(all, [](const SubmissionPtr& one) { return !one->completion.done; });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  completions.publish();
  waiting.join();
  EXPECT_EQ(incomplete, 0);
}

}  // namespace
}  // namespace kolo

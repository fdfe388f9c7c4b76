// What is in flight on a rank: names, the order of a rank's program, the turns of barriers.

#include "runtime/coordinator/pending_queue.h"

#include <gtest/gtest.h>

#include <thread>

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

SubmissionPtr submission(const std::string& name, GroupId id = 0) {
  auto result = std::make_shared<Submission>();
  result->name = name;
  result->group = group(id);
  return result;
}

SubmissionPtr barrier(GroupId id = 0) {
  auto result = submission("", id);
  result->signature.kind = OpKind::barrier;
  return result;
}

TEST(PendingQueueTest, HandsOutInOrder) {
  PendingQueue queue;
  EXPECT_TRUE(queue.empty());
  const auto a = submission("a"), b = submission("b");
  queue.submit(a);
  queue.push(What::flush, a);
  queue.submit(b);
  EXPECT_FALSE(queue.empty());
  const auto items = drained(queue);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].what, What::submit);
  EXPECT_EQ(items[1].what, What::flush);
  EXPECT_EQ(items[2].submission, b);
  EXPECT_EQ((std::vector<std::uint64_t>{items[0].sequence, items[1].sequence, items[2].sequence}),
            (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(a->sequence, 1u);
  EXPECT_EQ(b->sequence, 3u);
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(drained(queue).empty());
}

TEST(PendingQueueTest, ANameInFlightIsTaken) {
  PendingQueue queue;
  const auto first = submission("grad");
  queue.submit(first);
  EXPECT_EQ(error_text([&] { queue.submit(submission("grad")); }, ErrorCode::in_flight),
            "all_reduce 'grad' in group world: the name is already in flight on this rank; wait for the first "
            "operation or use "
            "another name");
  queue.submit(submission("grad", 1));  // of another group
  EXPECT_EQ(drained(queue).size(), 2u);
  EXPECT_EQ(queue.in_flight().front(), first);
  retire(queue, first);
  queue.submit(submission("grad"));
  EXPECT_EQ(queue.in_flight().size(), 2u);
}

TEST(PendingQueueTest, OperationsOfANameAreCounted) {
  PendingQueue queue;
  std::vector<std::uint64_t> counts;
  for (const bool withdrawn : {false, true, false, false}) {
    const auto next = submission("grad");
    queue.submit(next);
    counts.push_back(next->occurrence);
    next->agreed = !withdrawn;
    retire(queue, next);
  }
  EXPECT_EQ(counts, (std::vector<std::uint64_t>{0, 1, 1, 2})) << "one that was withdrawn was never there";
  for (int i = 0; i < 100; ++i) queue.submit(submission("a name that moves the table of names " + std::to_string(i)));
  const auto last = submission("grad");
  queue.submit(last);
  EXPECT_EQ(last->occurrence, 3u);
  const auto elsewhere = submission("grad", 1);
  queue.submit(elsewhere);
  EXPECT_EQ(elsewhere->occurrence, 0u);
}

TEST(PendingQueueTest, NothingIsTakenOnceItIsClosed) {
  PendingQueue queue;
  queue.submit(submission("a"));
  const auto departure = submission("kolo.close");
  queue.close(departure);
  EXPECT_EQ(error_text([&] { queue.submit(submission("b")); }, ErrorCode::closed),
            "all_reduce 'b' in group world: the session is closed; submit before close()");
  const auto items = drained(queue);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].what, What::depart);
  EXPECT_EQ(queue.in_flight().back(), departure);
}

TEST(PendingQueueTest, BarriersAreNumberedPerGroup) {
  PendingQueue queue;
  const auto first = barrier(), second = barrier(), other = barrier(1);
  queue.submit(first);
  queue.submit(second);
  queue.submit(other);
  EXPECT_EQ(first->name, "kolo.barrier.0");
  EXPECT_EQ(second->name, "kolo.barrier.1");
  EXPECT_EQ(other->name, "kolo.barrier.0");
  first->agreed = true;
  retire(queue, first);
  const auto third = barrier();
  queue.submit(third);
  EXPECT_EQ(third->name, "kolo.barrier.2") << "not the name that is free on this rank only";
}

TEST(PendingQueueTest, AWithdrawnBarrierGivesItsNumberToTheNext) {
  PendingQueue queue;
  const auto first = barrier(), second = barrier();
  queue.submit(first);
  queue.submit(second);
  retire(queue, first);  // neither agreed nor failed
  const auto third = barrier(), fourth = barrier();
  queue.submit(third);
  queue.submit(fourth);
  EXPECT_EQ(third->name, "kolo.barrier.0");
  EXPECT_EQ(fourth->name, "kolo.barrier.2");
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
      for (int i = 0; i < each; ++i) queue.submit(submission(std::to_string(worker) + "." + std::to_string(i)));
    });
  }
  std::vector<int> next(threads, 0);
  std::uint64_t sequence = 0;
  for (int seen = 0; seen < threads * each;) {
    for (const auto& item : drained(queue)) {
      EXPECT_EQ(item.sequence, ++sequence);
      const int worker = item.submission->name[0] - '0';
      EXPECT_EQ(item.submission->name.substr(2), std::to_string(next[static_cast<std::size_t>(worker)]++));
      retire(queue, item.submission);
      ++seen;
    }
  }
  for (auto& worker : workers) worker.join();
  EXPECT_TRUE(queue.in_flight().empty());
}

}  // namespace
}  // namespace kolo
